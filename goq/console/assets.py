"""Static files of the console, read from the package when a browser first asks for them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(msgspec.Struct, frozen=True):
    """A file: its content, and a tag that changes with it."""

    content: bytes
    content_type: str
    tag: str


class Assets:
    """The files of the console by path, as ``pages/topic.js``.

    The names are listed once, so no request makes a path: what is not listed does not exist.
    """

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder
        self._found: dict[str, Asset] = {}
        self._names: frozenset[str] | None = None

    def names(self) -> frozenset[str]:
        """Return the paths of all files that browsers may load."""
        if self._names is None:
            files = (path for path in self._folder.rglob("*") if path.suffix in _TYPES)
            self._names = frozenset(path.relative_to(self._folder).as_posix() for path in files)
        return self._names

    def get(self, name: str) -> Asset | None:
        """Return a file, None if there is none; the largest takes less than a millisecond."""
        asset = self._found.get(name)
        if asset is None and name in self.names():
            content = (self._folder / name).read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            asset = self._found[name] = Asset(content, _TYPES[Path(name).suffix], tag)
        return asset
