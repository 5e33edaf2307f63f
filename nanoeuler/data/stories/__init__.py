"""The built-in corpus: simple children's stories, made from our own grammar and words.

In the spirit of TinyStories (Eldan and Li 2023, arXiv:2305.07759): a world so small that a very
small language model can learn to speak about it in whole sentences.

Every story is a pure function of ``(seed, index)``, on every platform and Python version.

>>> from nanoeuler.data.stories import story
>>> story(0, 0) == story(0, 0)
True
"""

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from nanoeuler.data.stories import (
    plots_brave,
    plots_care,
    plots_fears,
    plots_friends,
    plots_things,
    plots_wishes,
)
from nanoeuler.data.stories.teller import Teller
from nanoeuler.errors import UserError

END_OF_TEXT = "<|endoftext|>"
PLOTS: tuple[Callable[[Teller], None], ...] = tuple(
    plot
    for module in (plots_things, plots_wishes, plots_friends, plots_fears, plots_brave, plots_care)
    for plot in module.PLOTS
)


def generate_story(rng: random.Random) -> str:
    """One story, drawn from ``rng``: two to four paragraphs of ASCII text, no title.

    >>> generate_story(random.Random("1")).endswith((".", "!", '"'))
    True
    """
    teller = Teller(rng)
    teller.pick(PLOTS)(teller)
    return teller.text()


def story(seed: int, index: int) -> str:
    """Story number ``index`` of the corpus ``seed``; the same text on every machine."""
    # A string seed goes through SHA-512, so that neighbouring indices give unrelated stories.
    return generate_story(random.Random(f"{seed}:{index}"))


def stories(n: int, seed: int = 0) -> Iterator[str]:
    """The first ``n`` stories of the corpus ``seed``, one at a time.

    >>> len(list(stories(3)))
    3
    """
    return (story(seed, index) for index in range(n))


def write_stories(
    path: str | os.PathLike[str], n: int, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> int:
    """Write ``n`` stories to a text file, each followed by a line ``<|endoftext|>``; return its size in bytes.

    The file appears whole or not at all: it is written under a temporary name, fsynced and renamed.
    ``progress(done, n)`` is called now and then, and at the end.

    Raises :class:`UserError` if ``n`` is not positive or the file cannot be written.
    """
    if n < 1:
        raise UserError(f"the number of stories must be at least 1, not {n}")
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="ascii", newline="") as file:
            for done, text in enumerate(stories(n, seed), start=1):
                file.write(f"{text}\n{END_OF_TEXT}\n")
                if progress is not None and (done % 1000 == 0 or done == n):
                    progress(done, n)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}; choose another place") from error
    finally:
        with contextlib.suppress(OSError):  # a file system that cannot be written has nothing to remove either
            temporary.unlink()
    return size
