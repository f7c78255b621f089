"""The settings of a node's archive: the object store that its segments go to."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from goq import limits
from goq.config.section import ConfigSection, Parser, checked_text, optional
from goq.units import parse_size_bytes

_CACHE_BYTES_MIN: Final = 64 * limits.MIB


def _store(value: Any, _field: str) -> str:
    if not str(value).startswith("s3://") or not str(value)[5:].strip("/"):
        raise ValueError(f"{str(value)[:80]!r} is not s3://bucket/prefix")
    return str(value).rstrip("/")


def _cache_size(value: str) -> str:
    if parse_size_bytes(value) < _CACHE_BYTES_MIN:
        raise ValueError(f"{value!r} is too little: at least 64MiB")
    return value


class ArchiveConfig(ConfigSection, frozen=True):
    """Archived segments go to ``to``, ``s3://bucket/prefix``; without it they stay on the disk.

    ``cache`` bounds what of them is on the disk again, because it was read lately.
    """

    PARSERS: ClassVar[dict[str, Parser]] = {
        "to": optional(_store),
        "cache": checked_text(_cache_size),
    }

    to: str | None = None
    cache: str = "1GiB"

    @property
    def cache_bytes(self) -> int:
        """The bound of the cache."""
        return parse_size_bytes(self.cache)

    def url_of(self, node_id: str) -> str | None:
        """Return where the segments of a node go; each has a prefix of its own."""
        return None if self.to is None else f"{self.to}/{node_id}"
