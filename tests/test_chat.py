"""Conversations: what stays in the cache is the text; and ``nanoeuler chat`` at a terminal and in a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.errors import UserError
from nanoeuler.inference.conversation import Conversation
from nanoeuler.inference.generator import Generator
from nanoeuler.inference.sampling import SamplingConfig
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import CharTokenizer


def generator(block_size: int = 40) -> Generator:
    tokenizer = CharTokenizer("\n abcdefgh")
    config = GPTConfig(tokenizer.n_vocab, block_size=block_size, n_layer=2, n_head=2, n_embd=16, init_std=0.3)
    return Generator(GPT(config, "reference", seed=1), tokenizer)


@pytest.mark.parametrize("block_size", [40, 400])
def test_turns_equal_one_text(block_size: int) -> None:
    """Each answer is what the generator writes after the whole text so far, windows included."""
    writer = generator(block_size)
    talk = Conversation(writer, SamplingConfig(temperature=1, seed=5))
    rng = np.random.default_rng(0)
    for turn in range(8):
        talk.add("".join(rng.choice(list("abcdefgh "), int(rng.integers(1, 9)))))
        before = talk.text
        want = writer.generate(before, max_new_tokens=7, temperature=1, seed=5 + turn)[0]
        assert "".join(talk.answer(max_new_tokens=7)) == want.text
        assert talk.text == before + want.text


def test_a_turn_reads_only_what_is_new() -> None:
    writer = generator(400)
    talk = Conversation(writer, SamplingConfig(seed=1))
    decoder, read = talk._batch.decoder, list[int]()
    prefill, extend = decoder.prefill, decoder.extend
    decoder.prefill = lambda slot, tokens: read.append(len(tokens)) or prefill(slot, tokens)  # type: ignore
    decoder.extend = lambda slot, tokens: read.append(len(tokens)) or extend(slot, tokens)  # type: ignore
    for text in ("abc", "de", "fgh"):
        talk.add(text)
        list(talk.answer(max_new_tokens=4))
    assert read == [3, 3, 4]  # and the last token of the answer before


def test_stopping_in_the_middle_keeps_what_was_written() -> None:
    talk = Conversation(generator(400), SamplingConfig(seed=1))
    talk.add("abc")
    pieces = talk.answer(max_new_tokens=50)
    begun = [next(pieces) for _ in range(5)]
    pieces.close()  # type: ignore[attr-defined]
    assert talk.text == "abc" + "".join(begun)
    before = talk.text
    want = talk.generator.generate(before, max_new_tokens=4, temperature=0.8, seed=2)[0].text
    assert "".join(talk.answer(max_new_tokens=4)) == want


def test_an_interrupt_while_reading_spoils_no_later_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = generator(400)
    talk, undisturbed = (Conversation(writer, SamplingConfig(temperature=0)) for _ in range(2))
    talk.add("abc")
    list(talk.answer(max_new_tokens=4))
    talk.add("defgh")
    with monkeypatch.context() as patch:  # the slot is already as long as if the words had been read
        patch.setattr(GPT, "logits_cached", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            list(talk.answer(max_new_tokens=4))
    talk.add("ha")
    undisturbed.tokens = list(talk.tokens)
    assert "".join(talk.answer(max_new_tokens=9)) == "".join(undisturbed.answer(max_new_tokens=9))


def test_stop_texts_are_no_part_of_the_text() -> None:
    writer = generator(400)
    talk = Conversation(writer, SamplingConfig(temperature=1, seed=3))
    for _ in range(6):
        talk.add("ab")
        before = talk.text
        want = writer.generate(before, max_new_tokens=30, temperature=1, seed=3 + talk.turns, stop=["c", "da"])[0]
        assert "".join(talk.answer(max_new_tokens=30, stop=["c", "da"])) == want.text
        assert talk.text == before + want.text


def test_reset_and_empty_beginning() -> None:
    talk = Conversation(generator(), SamplingConfig(seed=1))
    first = "".join(talk.answer(max_new_tokens=5))
    assert talk.text == first
    talk.reset()
    assert talk.text == ""
    assert "".join(talk.answer(max_new_tokens=5)) == first
    with pytest.raises(UserError, match="'é'"):
        talk.add("é")


@pytest.mark.parametrize("block_size", [400, 16])
def test_undo(block_size: int) -> None:
    """After it, the text goes on as if what was taken back had never been, though the windows have moved by then."""
    writer = generator(block_size)
    talk = Conversation(writer, SamplingConfig(temperature=0))
    with pytest.raises(UserError, match="nothing to take back"):
        talk.undo()
    kept = []
    for line in ("abc", "", "hgfe"):
        kept.append(talk.text)
        talk.add(line)
        list(talk.answer(max_new_tokens=9))
    for want in kept[:0:-1]:
        assert talk.undo() == talk.text == want
    talk.add("da")
    want = writer.generate(talk.text, max_new_tokens=9, temperature=0)[0].text
    assert "".join(talk.answer(max_new_tokens=9)) == want
    talk.undo()
    assert talk.undo() == "" and not talk.tokens
    talk.add("abc")
    assert "".join(talk.answer(max_new_tokens=9)) == writer.generate("abc", max_new_tokens=9, temperature=0)[0].text


# ---- the command --------------------------------------------------------------------------------------
CHAT = [sys.executable, "-m", "nanoeuler", "chat", "--seed", "1", "--max-new-tokens", "12"]


def chat(lines: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CHAT, *args], input=lines, capture_output=True, text=True, timeout=200)


def test_in_a_pipe(tmp_path: Path) -> None:
    out = tmp_path / "talk.txt"
    lines = f"Once upon a time\nThe dog\n/save {out}\n/temp 0\n/seed 9\n/help\n/what\n/temp hot\n/save\n/quit\nmore\n"
    done = chat(lines)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) >= 2 and all(answers[:2])
    text = out.read_text(encoding="utf-8")
    assert text.startswith("Once upon a time" + answers[0]) and "The dog" in text
    assert "no command /what" in done.stderr and "'hot' is not a temperature" in done.stderr
    assert "/reset" in done.stderr and "/save needs" in done.stderr
    assert "an empty line lets the model go on" in done.stderr
    undone = chat(f"Once\n/undo\n/undo\nThe cat\n\n/save {tmp_path / 'undone.txt'}\n")
    assert undone.stderr.count("taken back") == 1 and undone.stderr.count("nothing to take back") == 1
    assert (tmp_path / "undone.txt").read_text(encoding="utf-8").startswith("The cat")
    again = chat("Once upon a time\n/reset\nOnce upon a time\n").stdout.splitlines()
    assert again[0] == answers[0]


def test_saving_destroys_nothing_and_a_bad_byte_ends_nothing(tmp_path: Path) -> None:
    other, mine = tmp_path / "other.txt", tmp_path / "mine.txt"
    other.write_text("precious", encoding="utf-8")
    lines = f"Once\n/save {other}\n/save {mine}\n/save a\0b\nb\xff\n/save {mine}\n".encode("latin-1")
    done = subprocess.run(CHAT, input=lines, capture_output=True, timeout=200)
    said = done.stderr.decode()
    assert done.returncode == 0 and "Traceback" not in said
    assert other.read_text(encoding="utf-8") == "precious" and "choose another name" in said
    assert "not UTF-8" in said and "NUL" in said
    assert "b\ufffd" in mine.read_text(encoding="utf-8")


def test_bad_options() -> None:
    done = chat("", "--temperature", "-1")
    assert done.returncode == 2 and "temperature" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals and terminals")
def test_ctrl_c_ends_the_answer_and_not_the_program() -> None:
    import pty

    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "dumb"}
    args = [*CHAT[:-1], "100000"]
    process = subprocess.Popen(args, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)
    os.close(slave)
    assert process.stdout is not None
    os.write(master, b"Once upon a time\n")
    assert process.stdout.read(1)  # the answer has begun
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    os.write(master, b"/temp 0.5\n/quit\n")
    _, err = process.communicate(timeout=100)
    os.close(master)
    assert process.returncode == 0 and "Traceback" not in err, err
