"""Keys from the bytes that a terminal sends. Pure."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Final

UP: Final = "up"
DOWN: Final = "down"
ENTER: Final = "enter"
ESCAPE: Final = "escape"
BACKSPACE: Final = "backspace"
_KEYS: Final = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), UP),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), DOWN),
    **dict.fromkeys(("\r", "\n"), ENTER),
    **dict.fromkeys(("\x7f", "\b"), BACKSPACE),
    "\x1b": ESCAPE,
}
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)


class KeyDecoder:
    """Decodes keys: names of special ones, and single characters. Other control codes are dropped.

    A sequence that begins with escape must come in one piece: escape alone is a key.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def keys(self, data: bytes) -> Iterator[str]:
        """Yield the keys of the next bytes."""
        for match in _KEY.finditer(self._decoder.decode(data)):
            key = _KEYS.get(match[0], match[0])
            if key.isprintable():
                yield key
