"""Download known corpora, checked byte for byte: ``fetch("shakespeare", "data")``.

A download grows in ``NAME.part`` and continues there after an interruption (an HTTP range request); it gets its name
only once size and SHA-256 are right. A file already in place that passes the same check is used as it is, so on a
machine without a network you bring the file by hand.

Sizes and hashes: tiny Shakespeare was hashed here; those of TinyStories are the Git LFS ids of revision f54c09fd on
Hugging Face.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from nanoeuler.data.prepare import Progress
from nanoeuler.data.shards import writing
from nanoeuler.errors import UserError

ATTEMPTS = 4  # each continues where the one before stopped
PAUSE_S = 2.0  # before the second attempt; then twice and three times as long
_BLOCK = 1 << 18  # bytes
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}  # HTTP answers worth another attempt


@dataclass(frozen=True)
class RemoteFile:
    """A file whose every byte is known: its name here, address, size in bytes and SHA-256 in hexadecimal."""

    name: str
    url: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """One or more files, and what to know about them."""

    about: str
    licence: str
    files: tuple[RemoteFile, ...]


_TINYSTORIES = (
    "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/"
)
_TINYSTORIES_TRAIN = RemoteFile(
    "TinyStoriesV2-GPT4-train.txt",
    _TINYSTORIES + "TinyStoriesV2-GPT4-train.txt",
    2_227_753_162,
    "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
)
_TINYSTORIES_VALID = RemoteFile(
    "TinyStoriesV2-GPT4-valid.txt",
    _TINYSTORIES + "TinyStoriesV2-GPT4-valid.txt",
    22_502_601,
    "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
)

CORPORA: dict[str, Corpus] = {
    "shakespeare": Corpus(
        "tiny Shakespeare: 1.1 MB of plays, from Karpathy's char-rnn",
        "public domain",
        (
            RemoteFile(
                "tinyshakespeare.txt",
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                1_115_394,
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            ),
        ),
    ),
    "tinystories": Corpus(
        "TinyStories V2: 2.7 million short stories by GPT-4, 2.2 GB, and 22 MB for validation (arXiv 2305.07759)",
        "CDLA-Sharing-1.0",
        (_TINYSTORIES_TRAIN, _TINYSTORIES_VALID),
    ),
    "tinystories-valid": Corpus(
        "the 22 MB validation part of TinyStories V2 alone, 27,630 stories",
        "CDLA-Sharing-1.0",
        (_TINYSTORIES_VALID,),
    ),
}


def fetch(
    name: str,
    out_dir: Path | str,
    progress: Progress | None = None,
    *,
    url: str | None = None,
    timeout_s: float = 30.0,
) -> list[Path]:
    """Download the corpus ``name`` into ``out_dir`` and return its files, verified.

    ``url`` names a mirror: a folder (ending in ``/``) that holds the files under their names here, or, for a corpus of
    one file, the file itself. ``timeout_s`` is how long the server may be silent, in seconds. ``progress`` gets the
    stage ``"download"``, then ``"verify"``. Raises UserError for an unknown name, a file that is not the known one,
    a network that fails (what came is kept, and continued by the next call), or a full disk.

    >>> for name, corpus in CORPORA.items():
    ...     print(name, sum(file.size for file in corpus.files))
    shakespeare 1115394
    tinystories 2250255763
    tinystories-valid 22502601
    """
    if name not in CORPORA:
        raise UserError(f"unknown corpus {name!r}: choose one of {', '.join(CORPORA)}")
    files = CORPORA[name].files
    if url is not None and not url.startswith(("http://", "https://")):
        raise UserError(f"--url must begin with http:// or https://, got {url!r}")
    if url is not None and len(files) > 1 and not url.endswith("/"):
        raise UserError(f"{name} has {len(files)} files: end --url with / to name the folder that holds them")
    out_dir = Path(out_dir)
    with writing(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
    return [_fetch_file(file, _address(file, url), out_dir, progress, timeout_s) for file in files]


def _address(file: RemoteFile, mirror: str | None) -> str:
    if mirror is None:
        return file.url
    return mirror + file.name if mirror.endswith("/") else mirror


def _fetch_file(file: RemoteFile, url: str, out_dir: Path, progress: Progress | None, timeout_s: float) -> Path:
    path = out_dir / file.name
    if path.exists():
        if not _is_known(path, file, progress):
            raise UserError(f"{path} exists but is not the known file ({_identity(file)}): move it away, and try again")
        return path
    part = path.with_name(path.name + ".part")
    _download(file, url, part, path, progress, timeout_s)
    if not _is_known(part, file, progress):
        part.unlink()
        raise UserError(
            f"what {url} sent is not the known file ({_identity(file)}), and was removed: "
            f"try again, try a mirror with --url, or save the right file as {path}"
        )
    part.replace(path)
    return path


def _identity(file: RemoteFile) -> str:
    return f"{file.size} bytes, sha256 {file.sha256}"


def _is_known(path: Path, file: RemoteFile, progress: Progress | None) -> bool:
    if path.stat().st_size != file.size:
        return False
    sha256 = hashlib.sha256()
    done = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            sha256.update(block)
            done += len(block)
            if progress:
                progress("verify", done, file.size)
    return sha256.hexdigest() == file.sha256


def _download(file: RemoteFile, url: str, part: Path, path: Path, progress: Progress | None, timeout_s: float) -> None:
    """Fill ``part`` up to the file's size, with a few attempts; UserError says how to go on."""
    reason = ""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_S * attempt)
        try:
            return _continue(file, url, part, progress, timeout_s)
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code == 416:  # there is nothing after what we have: it cannot be the beginning of this file
                part.unlink(missing_ok=True)
            elif error.code not in _TRANSIENT:
                break
        except urllib.error.URLError as error:
            reason = str(getattr(error.reason, "strerror", None) or error.reason)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
    kept = part.stat().st_size if part.exists() else 0
    again = f"run the same command again to continue after the {kept} bytes that came, or " if kept else ""
    raise UserError(
        f"cannot download {url} ({reason}): {again}try a mirror with --url, or download it by other means and "
        f"save it as {path} ({_identity(file)})"
    )


def _continue(file: RemoteFile, url: str, part: Path, progress: Progress | None, timeout_s: float) -> None:
    """One request, from where ``part`` ends; OSError or HTTPException if it breaks off."""
    have = part.stat().st_size if part.exists() else 0
    if have == file.size:
        return
    headers = {"User-Agent": "nanoeuler"}
    if 0 < have < file.size:
        headers["Range"] = f"bytes={have}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout_s) as response:
        if response.headers.get("Content-Range", "").split("-")[0] != f"bytes {have}":
            have = 0  # the server sends the file from its beginning
        length = response.headers.get("Content-Length")
        if length is not None and have + int(length) != file.size:
            raise UserError(
                f"{url} offers {have + int(length)} bytes, but the known file has {file.size}: try a mirror with --url"
            )
        with writing(part):
            stream = part.open("ab" if have else "wb")
        with stream:
            while have < file.size and (block := response.read(min(_BLOCK, file.size - have))):
                with writing(part):  # around the write alone: an OSError of the network is worth another attempt
                    stream.write(block)
                have += len(block)
                if progress:
                    progress("download", have, file.size)
            with writing(part):
                stream.flush()
                os.fsync(stream.fileno())
    if have < file.size:
        raise ConnectionError(f"the connection ended after {have} of {file.size} bytes")
