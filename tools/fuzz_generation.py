"""Write thousands of texts with random prompts, lengths and settings, and look for what must never happen.

    python tools/fuzz_generation.py [N] [SEED]     # N generations (10,000)

Never: an exception other than UserError, an id outside the vocabulary, text that is not valid UTF-8 or differs from the
stream's, more tokens than asked for, or memory that grows from one thousand to the next.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.inference.generator import Generator
from nanoeuler.model.config import GPTConfig
from nanoeuler.model.gpt import GPT
from nanoeuler.tokenizer import CharTokenizer, Tokenizer

PIECES = [
    "Once upon a time",
    "é",
    "日本",
    "🙂",
    "\n\n",
    "<|endoftext|>",
    " ",
    "\0",
    "\u200d",
    "'s",
    "12345",
    "ZZZ",
    "\ud7ff",
    "\r\n",
]


def generators() -> list[Generator]:
    """The shipped model in three precisions, and small random ones whose texts are anything at all."""
    out = [Generator.from_pretrained(weights=weights) for weights in (None, "bf16", "int8")]
    for tokenizer in (Tokenizer([], {"<|endoftext|>": 256}), CharTokenizer("\n abcdefghijklmnopqrstuvwxyzé🙂")):
        for block_size, n_embd, weights in ((1, 8, None), (7, 33, "int8"), (64, 24, "bf16")):
            config = GPTConfig(
                tokenizer.n_vocab + 5, block_size=block_size, n_layer=2, n_head=1, n_embd=n_embd, init_std=0.5
            )
            out.append(Generator(GPT(config, seed=n_embd), tokenizer, weights))
    return out


def settings(rng: np.random.Generator, others: list[Generator]) -> dict[str, Any]:
    """Anything a caller may ask for."""
    draft: Any = rng.choice([None, None, None, "lookup", "model"])
    if draft == "model":
        draft = others[int(rng.integers(len(others)))]
    return {
        "max_new_tokens": int(rng.choice([0, 1, 2, 5, 20, 60])),
        "temperature": float(rng.choice([0.0, 1e-6, 0.5, 1.0, 2.0, 50.0])),
        "top_k": rng.choice([None, 0, 1, 5, 10_000]),
        "top_p": float(rng.choice([1.0, 0.9, 0.1, 1e-9])),
        "repetition_penalty": float(rng.choice([1.0, 1.0, 1.3, 0.5])),
        "seed": int(rng.integers(1 << 32)),
        "stop": rng.choice(np.array([None, "e", ["\n", "the "], "🙂"], object)),
        "stop_at_eot": bool(rng.integers(2)),
        "allow_special": bool(rng.integers(2)),
        "overflow": str(rng.choice(["slide", "slide", "refuse"])),
        "draft": draft,
    }


def one(rng: np.random.Generator, generator: Generator, others: list[Generator]) -> int:
    """One call; how many texts it wrote. Raises AssertionError for what must not be."""
    options = settings(rng, others)
    prompts = ["".join(rng.choice(PIECES, int(rng.integers(0, 12)))) for _ in range(int(rng.choice([1, 1, 2, 3])))]
    n_samples = int(rng.choice([1, 1, 2, 3]))
    try:
        texts = generator.generate(prompts, num_samples=n_samples, batch_size=int(rng.integers(1, 6)), **options)
        stream = generator.stream(prompts[-1], sample=n_samples - 1, **options)
        streamed = "".join(stream)
    except UserError:
        return 0
    assert streamed == texts[-1].text and stream.generation == texts[-1]
    for text in texts:
        assert len(text.tokens) <= options["max_new_tokens"]
        assert all(0 <= id < generator.tokenizer.n_vocab for id in text.tokens)
        text.text.encode("utf-8")  # raises for half a surrogate pair
        assert generator.tokenizer.decode(text.tokens).startswith(text.text)
    return len(texts) + 1


def fuzz(n: int, seed: int, report: Any = None) -> list[int]:
    """At least ``n`` generations; resident memory in bytes after each tenth of them."""
    rng, everyone, done, memory = np.random.default_rng(seed), generators(), 0, []
    while done < n:
        generator = everyone[int(rng.integers(len(everyone)))]
        others = [g for g in everyone if g.tokenizer.n_vocab == generator.tokenizer.n_vocab]
        done += one(rng, generator, others)
        if done >= n * (len(memory) + 1) / 10:
            memory.append(resident())
            if report:
                report(done, memory[-1])
    return memory


def resident() -> int:
    """Bytes of this process in memory now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    begun = time.perf_counter()

    def report(done: int, memory: int) -> None:
        print(f"{done:,} generations, {time.perf_counter() - begun:.0f} s, {memory / 1e6:.1f} MB", flush=True)

    memory = fuzz(n, int(sys.argv[2]) if len(sys.argv) > 2 else 0, report)
    growth = memory[-1] - memory[2]
    print(f"memory grew by {growth / 1e6:.1f} MB from the third tenth to the last")
    if growth > 20e6:
        sys.exit("memory is not flat")


if __name__ == "__main__":
    main()
