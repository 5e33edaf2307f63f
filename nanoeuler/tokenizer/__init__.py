"""Text to token ids and back: byte-level BPE as in GPT-2, and single characters as in nanoGPT."""

from nanoeuler.tokenizer.base import BaseTokenizer
from nanoeuler.tokenizer.bpe import END_OF_TEXT, Tokenizer
from nanoeuler.tokenizer.char import CharTokenizer
from nanoeuler.tokenizer.files import load_tokenizer
from nanoeuler.tokenizer.stream import StreamDecoder

__all__ = ["END_OF_TEXT", "BaseTokenizer", "CharTokenizer", "StreamDecoder", "Tokenizer", "load_tokenizer"]
