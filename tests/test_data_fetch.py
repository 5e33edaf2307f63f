"""Downloads, against a server on this machine that can be told to misbehave."""

import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from nanoeuler.data import fetch as fetching
from nanoeuler.data.fetch import CORPORA, Corpus, RemoteFile, fetch
from nanoeuler.errors import UserError

CONTENT = np.random.default_rng(0).bytes(700_001)


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.content``; ``server.answers`` says, one entry a request, how to behave (default: well)."""

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Range")))
        how = self.server.answers.pop(0) if self.server.answers else "well"
        content, first = self.server.content, 0
        if isinstance(how, int):
            self.send_error(how)
            return
        if self.headers.get("Range") and how != "no ranges":
            first = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if first >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[first:]
        if how != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if how == "half" else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.content, server.answers, server.requests = CONTENT, [], []
    server.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    known = RemoteFile("a.txt", server.url + "far/a.txt", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    other = RemoteFile("b.txt", server.url + "far/b.txt", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(CORPORA, "one", Corpus("for tests", "none", (known,)))
    monkeypatch.setitem(CORPORA, "two", Corpus("for tests", "none", (known, other)))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_complete(server, tmp_path):
    calls = []
    paths = fetch("one", tmp_path / "new" / "folder", progress=lambda *call: calls.append(call))
    assert paths == [tmp_path / "new" / "folder" / "a.txt"] and paths[0].read_bytes() == CONTENT
    assert names_in(paths[0].parent) == ["a.txt"]
    assert server.requests == [("/far/a.txt", None)]
    for stage in ("download", "verify"):
        done = [d for s, d, total in calls if s == stage and total == len(CONTENT)]
        assert done == sorted(done) and done[-1] == len(CONTENT)
    assert fetch("one", tmp_path / "new" / "folder") == paths and len(server.requests) == 1  # no second download


@pytest.mark.parametrize("answer", ["well", "no length"])
@pytest.mark.parametrize("have", [1, 5000, len(CONTENT) - 1])
def test_continues_a_part(server, tmp_path, have, answer):
    (tmp_path / "a.txt.part").write_bytes(CONTENT[:have])
    server.answers = [answer]
    assert fetch("one", tmp_path)[0].read_bytes() == CONTENT
    assert server.requests == [("/far/a.txt", f"bytes={have}-")] and names_in(tmp_path) == ["a.txt"]


def test_a_whole_part_needs_no_network(server, tmp_path):
    (tmp_path / "a.txt.part").write_bytes(CONTENT)
    assert fetch("one", tmp_path)[0].read_bytes() == CONTENT and server.requests == []


def test_a_server_without_ranges(server, tmp_path):
    (tmp_path / "a.txt.part").write_bytes(CONTENT[:5000])
    server.answers = ["no ranges"]
    assert fetch("one", tmp_path)[0].read_bytes() == CONTENT


def test_broken_connections_are_continued(server, tmp_path):
    server.answers = ["half", 503, "half"]
    assert fetch("one", tmp_path)[0].read_bytes() == CONTENT
    ranges = [r for _, r in server.requests]
    half = len(CONTENT) // 2
    assert ranges[:3] == [None, f"bytes={half}-", f"bytes={half}-"] and len(ranges) == 4


def test_truncated_for_good_keeps_what_came(server, tmp_path):
    server.answers = ["half", 500, 500, 500]
    with pytest.raises(UserError, match="run the same command again to continue after the 350000 bytes") as caught:
        fetch("one", tmp_path)
    assert str(tmp_path / "a.txt") in str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / "a.txt.part").read_bytes() == CONTENT[:350_000]
    assert fetch("one", tmp_path)[0].read_bytes() == CONTENT


def test_wrong_bytes_are_removed(server, tmp_path):
    server.content = bytes(len(CONTENT))
    with pytest.raises(UserError, match=r"is not the known file .* and was removed"):
        fetch("one", tmp_path)
    assert names_in(tmp_path) == []


def test_a_part_that_is_not_the_beginning_of_the_file(server, tmp_path):
    part = tmp_path / "a.txt.part"
    part.write_bytes(b"?" * 5000)  # seen when all is there, and removed, so that the next call begins anew
    with pytest.raises(UserError, match=r"is not the known file .* and was removed"):
        fetch("one", tmp_path)
    part.write_bytes(b"?" * (len(CONTENT) + 1))  # too long: seen at once
    assert fetch("one", tmp_path)[0].read_bytes() == CONTENT


def test_wrong_size_is_refused_at_once(server, tmp_path):
    server.content = b"<html>Please log in to this network</html>"
    with pytest.raises(UserError, match="offers 42 bytes, but the known file has 700001"):
        fetch("one", tmp_path)
    assert names_in(tmp_path) == []


def test_a_server_that_says_nothing_of_length_and_sends_too_much(server, tmp_path):
    server.content, server.answers = CONTENT + b"more", ["no length"]
    assert fetch("one", tmp_path)[0].read_bytes() == CONTENT  # the known bytes came; the rest is not read


def test_not_found(server, tmp_path):
    server.answers = [404]
    with pytest.raises(UserError, match=r"cannot download .*far/a\.txt \(HTTP 404 .*try a mirror with --url"):
        fetch("one", tmp_path)
    assert len(server.requests) == 1 and names_in(tmp_path) == []  # asking again would not help


def test_no_network(server, tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.txt"
    with pytest.raises(UserError, match=r"Connection refused|refused it") as caught:
        fetch("one", tmp_path, url=url)
    message = str(caught.value)
    assert url in message and f"save it as {tmp_path / 'a.txt'}" in message and "sha256" in message
    assert "\n" not in message and names_in(tmp_path) == []
    (tmp_path / "a.txt").write_bytes(CONTENT)  # brought by hand
    assert fetch("one", tmp_path, url=url)[0].read_bytes() == CONTENT


def test_unresolvable_host(server, tmp_path, monkeypatch):
    def no_name(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    with pytest.raises(UserError, match=r"cannot download http://far\.example/a\.txt \(Name or service not known\)"):
        fetch("one", tmp_path, url="http://far.example/a.txt")


def test_a_silent_server(server, tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match="timed out"):
            fetch("one", tmp_path, url=f"http://127.0.0.1:{silent.getsockname()[1]}/a.txt", timeout_s=0.05)


def test_mirrors(server, tmp_path):
    fetch("one", tmp_path / "1", url=server.url + "some/file.bin")
    fetch("two", tmp_path / "2", url=server.url + "folder/")
    assert [path for path, _ in server.requests] == ["/some/file.bin", "/folder/a.txt", "/folder/b.txt"]
    assert names_in(tmp_path / "2") == ["a.txt", "b.txt"]
    with pytest.raises(UserError, match="two has 2 files: end --url with /"):
        fetch("two", tmp_path, url=server.url + "file")
    with pytest.raises(UserError, match="must begin with http"):
        fetch("one", tmp_path, url="file:///etc/hosts")


def test_another_file_in_the_way_is_left_alone(server, tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(UserError, match=r"a\.txt exists but is not the known file"):
        fetch("one", tmp_path)
    assert (tmp_path / "a.txt").read_text() == "mine" and server.requests == []


def test_full_disk(server, tmp_path, monkeypatch):
    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching.os, "fsync", no_space)
    with pytest.raises(UserError, match=r"disk is full while writing .*a\.txt\.part"):
        fetch("one", tmp_path)
    assert len(server.requests) == 1


def test_unknown_names():
    with pytest.raises(UserError, match=r"unknown corpus 'x': choose one of shakespeare, tinystories"):
        fetch("x", "nowhere")


def test_the_known_corpora_are_well_formed():
    files = {file.name: file for corpus in CORPORA.values() for file in corpus.files}
    assert files["tinyshakespeare.txt"].size == 1_115_394
    for file in files.values():
        assert file.url.startswith("https://") and len(bytes.fromhex(file.sha256)) == 32 and file.size > 0
