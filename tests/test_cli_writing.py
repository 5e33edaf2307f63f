"""The commands that write: quantize, bench generate, and sample with other weights and drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoeuler.cli.main import run
from nanoeuler.inference.cpu_decoder import CpuDecoder
from nanoeuler.inference.generator import Generator
from nanoeuler.inference.sampling import SamplingConfig, sample_next, uniform


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "int8"
    assert run(["quantize", "--out", str(folder), "--no-measure"]) == 0
    return folder


def test_quantize_says_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m"
    assert run(["quantize", "--out", str(out), "--max-tokens", "6000"]) == 0
    text = capsys.readouterr().out
    found = re.search(r"perplexity ([\d.]+) -> ([\d.]+) \(([+-][\d.]+)%\) on ([\d,]+) tokens", text)
    assert found, text
    assert abs(float(found[3])) < 1.0  # the promise, on the shipped model
    assert (out / "config.json").exists() and (out / "vocab.json").exists()
    assert run(["quantize", "--out", str(out)]) == 2  # never writes over anything
    assert run(["quantize", str(out), "--out", str(tmp_path / "again")]) == 2
    assert "in 8 bits already" in capsys.readouterr().err


def test_sample_and_eval_of_a_quantized_model(int8_folder: Path, tmp_path: Path, capsys: Any) -> None:
    settings = ["--seed", "1", "--max-new-tokens", "20"]
    assert run(["sample", "Once", "--model", str(int8_folder), *settings]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Once") and len(text) > 20
    assert run(["sample", "Once", "--weights", "int8", *settings]) == 0
    assert capsys.readouterr().out == text  # the same numbers, packed on loading
    story = tmp_path / "story.txt"
    story.write_text("Once upon a time there was a dog.")
    assert run(["eval", str(story), "--model", str(int8_folder), "--seq-len", "8"]) == 0
    assert "perplexity" in capsys.readouterr().out


def test_a_quantized_generator_saves_itself(int8_folder: Path, tmp_path: Path) -> None:
    first = Generator.from_pretrained(int8_folder)
    first.save_pretrained(tmp_path / "copy")
    second = Generator.from_pretrained(tmp_path / "copy")
    a, b = (g.generate("Lily", max_new_tokens=10, seed=1)[0].text for g in (first, second))
    assert a == b


def test_sample_with_a_draft_says_how_often_it_was_right(capsys: pytest.CaptureFixture[str], int8_folder: Path) -> None:
    settings = ["sample", "Once upon", "--seed", "1", "--max-new-tokens", "40"]
    assert run(settings) == 0
    plain = capsys.readouterr().out
    for draft in ("lookup", str(int8_folder)):
        assert run([*settings, "--draft", draft]) == 0
        result = capsys.readouterr()
        assert result.out == plain
        assert re.search(r"draft: \d+ of \d+ guesses were right \(\d+%\)", result.err)


def test_weights_that_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sample", "x", "--weights", "int3"]) == 2
    assert "float32, bf16, int8" in capsys.readouterr().err
    assert run(["sample", "x", "--weights", "bf16", "--device", "reference"]) == 2
    assert "reference cannot write with weights bf16" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["--device", "reference"], ["--weights", "int8"]])
def test_bench_generate(args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from nanoeuler.ops.cpu import bandwidth

    monkeypatch.setattr(bandwidth, "read_bandwidth", lambda threads, size: 1e15)
    base = ["bench", "generate", "--seconds", "0.01", *args]
    assert run(base) == 0
    out = capsys.readouterr().out
    assert "tokens/s" in out and "from cache" not in out
    monkeypatch.setattr(bandwidth, "read_bandwidth", lambda threads, size: 1.0)
    assert run(base) == 0
    out = capsys.readouterr().out
    assert ("from cache: read faster than memory gives" in out) == (args[0] == "--weights")
    assert not [share for share in re.findall(r"(\d+)%", out) if int(share) > 100]
    assert run([*base, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["batch"] for row in rows[-2:]] == [4, 16]
    assert all(row["tokens_per_second"] > 0 and row["first_token"] > 0 for row in rows)
    assert rows[1]["context"] > rows[0]["context"]


# ---- a decoder that chooses tokens itself ---------------------------------------------------------------
class Choosing(CpuDecoder):
    """What a GPU does, on the host: reads and chooses ahead of the caller, who may stop anywhere."""

    draws = 0

    def draw(
        self,
        slots: Sequence[int],
        first: Sequence[int],
        configs: Sequence[SamplingConfig],
        samples: Sequence[int],
        positions: Sequence[int],
        n_valid: int,
        limit: int,
        stop_id: int | None,
    ) -> Iterator[np.ndarray] | None:
        if any(config.repetition_penalty != 1 for config in configs):
            return None

        def ids() -> Iterator[np.ndarray]:
            tokens = list(first)
            for i in range(limit):
                rows = self.step(slots, tokens)
                keys = zip(rows, configs, samples, positions)
                tokens = [
                    sample_next(z, [], config, uniform(config.seed, sample, position + i), n_valid)
                    for z, config, sample, position in keys
                ]
                Choosing.draws += 1
                yield np.array(tokens, np.int32)

        return ids()


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("n", [1, 5])
def test_a_device_that_chooses_writes_the_same(penalty: float, n: int) -> None:
    """Past the end of the context, with texts that end at different places, and with stop strings."""
    plain, choosing = Generator.from_pretrained(), Generator.from_pretrained()
    inner = choosing.open_decoder

    def open_decoder(n_slots: int, context: int) -> Any:
        decoder = inner(n_slots, context)
        decoder.__class__ = Choosing
        return decoder

    choosing.open_decoder = open_decoder  # type: ignore[method-assign]
    Choosing.draws = 0
    for settings in ({"max_new_tokens": 400}, {"max_new_tokens": 60, "stop": [" the", "."]}, {"temperature": 0.0}):
        options: dict[str, Any] = {
            "seed": 7,
            "num_samples": n,
            "batch_size": 3,
            "repetition_penalty": penalty,
            **settings,
        }
        texts = choosing.generate(["Once upon a time", ""], **options)
        assert texts == plain.generate(["Once upon a time", ""], **options)
        options.pop("num_samples"), options.pop("batch_size")
        assert "".join(choosing.stream("Lily", **options)) == "".join(plain.stream("Lily", **options))
    assert (Choosing.draws > 50) == (penalty == 1.0)
