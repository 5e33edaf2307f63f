"""``nanoeuler sample``: prompts, what is printed, JSON."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from command_line import Cli, sample, shell


def test_sample_streams_text_and_says_who_wrote_it(cli: Cli, world: Path) -> None:
    one, again = (cli(*sample(world, "Once upon", "--seed", 1)) for _ in range(2))
    assert one.code == 0 and one.out.startswith("Once upon") and one.out == again.out
    assert re.search(
        r"model: .*run.best \(GPT-2, .*trained 3 steps on 192 tokens, validation loss \d\.\d{3}\)", one.err
    )
    assert "seed:  1" in one.err
    assert cli(*sample(world, "Once upon", "--seed", 2)).out != one.out


def test_sample_hides_the_prompt_and_counts(cli: Cli, world: Path) -> None:
    result = cli(*sample(world, "Once upon", "--hide-prompt", "-n", 3, "--seed", 1))
    assert "Once upon" not in result.out and result.out.count("---\n") == 2


def test_sample_json(cli: Cli, world: Path) -> None:
    result = cli(*sample(world, "Once", "-n", 2, "--seed", 1, "--json"))
    texts = [json.loads(line) for line in result.out.splitlines()]
    streamed = cli(*sample(world, "Once", "-n", 2, "--seed", 1, "--hide-prompt")).out
    assert [t["sample"] for t in texts] == [0, 1] and texts[0]["seed"] == 1
    assert "\n---\n".join(t["text"] for t in texts) + "\n" == streamed


def test_sample_reads_the_prompt_from_file_and_standard_input(cli: Cli, world: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes("Once\r\nupon é\n".encode())
    from_file = cli(*sample(world, "--file", tmp_path / "p.txt", "--seed", 1))
    assert from_file.out.startswith("Once\nupon é")
    piped = shell(
        *sample(world, "-", "--seed", 1), input="Once\nupon é\n", encoding="utf-8", env=os.environ | {"PYTHONUTF8": "1"}
    )
    assert piped.stdout == from_file.out


def test_sample_says_when_the_prompt_is_too_long(cli: Cli, world: Path) -> None:
    result = cli(*sample(world, "Once upon a time. " * 20))
    assert result.code == 0 and "more than the model's context of 32" in result.err


def test_sample_stops_at_a_text(cli: Cli, world: Path) -> None:
    full = cli(*sample(world, "Once", "--seed", 3, "--hide-prompt")).out.removesuffix("\n")
    assert len(full) > 3
    cut = cli(*sample(world, "Once", "--seed", 3, "--hide-prompt", "--stop", full[2:4]))
    assert cut.out == full[: full.index(full[2:4])] + "\n" and "stop text reached" in cut.err
