"""GPT-2's way of writing bytes as visible characters, used in ``vocab.json`` and ``merges.txt``.

A token is a string of bytes, and JSON cannot hold those. So each byte gets one visible character: the 188
bytes that are printable in Latin-1 stand for themselves, and the other 68, in order, are U+0100 onward; a
space is written ``Ġ``. The same order numbers the first 256 tokens: the printable bytes first.
Source: ``bytes_to_unicode`` in https://github.com/openai/gpt-2.
"""

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))

# BYTE_ORDER[id] is the byte of token id, for the first 256 ids; SYMBOLS[id] is the character it is written as.
BYTE_ORDER = bytes(_PRINTABLE + _OTHERS)
SYMBOLS = [chr(byte) for byte in _PRINTABLE] + [chr(0x100 + n) for n in range(len(_OTHERS))]

_SYMBOL_OF_BYTE = str.maketrans({chr(byte): symbol for byte, symbol in zip(BYTE_ORDER, SYMBOLS)})
_BYTE_OF_SYMBOL = dict(zip(SYMBOLS, BYTE_ORDER))
_ID_OF_BYTE = bytes(BYTE_ORDER.index(byte) for byte in range(256))


def to_symbols(token: bytes) -> str:
    """Write a token's bytes as visible characters.

    >>> to_symbols(" né".encode())
    'ĠnÃ©'
    """
    return token.decode("latin-1").translate(_SYMBOL_OF_BYTE)


def from_symbols(written: str) -> bytes:
    """The bytes of a token so written; KeyError if a character stands for no byte.

    >>> from_symbols("ĠnÃ©").decode()
    ' né'
    """
    return bytes([_BYTE_OF_SYMBOL[symbol] for symbol in written])


def is_symbols(written: str) -> bool:
    """Whether every character of ``written`` stands for a byte."""
    return all(symbol in _BYTE_OF_SYMBOL for symbol in written)


def byte_ids(text: bytes) -> list[int]:
    """Bytes as the ids of their one-byte tokens: where byte-pair encoding begins.

    >>> byte_ids(b"hi!")
    [71, 72, 0]
    """
    return list(text.translate(_ID_OF_BYTE))
