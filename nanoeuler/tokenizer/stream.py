"""Decoding a stream of tokens into text, as it comes, without ever showing half a character."""

from nanoeuler.tokenizer.base import BaseTokenizer


class StreamDecoder:
    """Turns ids into text one by one, holding back a character until its last byte has come.

    A token is a string of bytes, and a character outside ASCII may be spread over several tokens. Joined,
    what ``feed`` and ``flush`` return is exactly ``tokenizer.decode(ids)``, for any ids at all: bytes that
    can never become a character turn into U+FFFD at once.

    >>> from nanoeuler.tokenizer import Tokenizer
    >>> tokenizer = Tokenizer.gpt2()
    >>> stream = StreamDecoder(tokenizer)
    >>> [stream.feed(id) for id in tokenizer.encode("né 🤖")]
    ['n', 'é', ' ', '', '🤖']
    >>> stream.flush()
    ''
    """

    def __init__(self, tokenizer: BaseTokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = b""

    def feed(self, id: int) -> str:
        """Take the next token; return the text it completes. Raises UserError for an id out of range."""
        received = self._held + self._tokenizer.decode_bytes([id])
        whole = len(received) - unfinished(received)
        self._held = received[whole:]
        return received[:whole].decode("utf-8", errors="replace")

    def flush(self) -> str:
        """End the stream: U+FFFD if a character was left unfinished, else nothing."""
        rest, self._held = self._held, b""
        return rest.decode("utf-8", errors="replace")


def unfinished(text: bytes) -> int:
    """How many bytes at the end of ``text`` are the valid beginning of a longer UTF-8 character: 0 to 3.

    The lead byte says how long the character is, and narrows what its second byte may be, so that no
    character has two spellings, and none is a surrogate or beyond U+10FFFF (Unicode Standard, table 3-7).

    >>> unfinished("é".encode()), unfinished("é".encode()[:1]), unfinished(b"\\xed\\xa0")
    (0, 1, 0)
    """
    for length in range(1, min(3, len(text)) + 1):
        lead = text[-length]
        if lead & 0xC0 == 0x80:
            continue  # a continuation byte: its lead byte lies further left
        if not 0xC2 <= lead <= 0xF4:
            return 0
        needed = 2 + (lead >= 0xE0) + (lead >= 0xF0)
        low, high = _SECOND_BYTE.get(lead, (0x80, 0xBF))
        second_fits = length == 1 or low <= text[1 - length] <= high
        return length if length < needed and second_fits else 0
    return 0


_SECOND_BYTE = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
