"""The settings of a node's archive: the object store that its segments go to."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, field_validator

from goq import limits
from goq.errors import InvalidInput
from goq.units import parse_size_bytes

_CACHE_BYTES_MIN: Final = 64 * limits.MIB


class ArchiveConfig(BaseModel):
    """Archived segments go to ``to``, ``s3://bucket/prefix``; without it they stay on the disk.

    ``cache`` bounds what of them is on the disk again, because it was read lately.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: str | None = None
    cache: str = "1GiB"

    @field_validator("to", mode="before")
    @classmethod
    def _is_a_store(cls, value: Any) -> Any:
        if value is None or value == "none":
            return None
        if not str(value).startswith("s3://") or not str(value)[5:].strip("/"):
            raise ValueError(f"{str(value)[:80]!r} is not s3://bucket/prefix")
        return str(value).rstrip("/")

    @field_validator("cache")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        try:
            if parse_size_bytes(value) < _CACHE_BYTES_MIN:
                raise ValueError(f"{value!r} is too little: at least 64MiB")
        except InvalidInput as error:
            raise ValueError(error.detail) from None
        return value

    @property
    def cache_bytes(self) -> int:
        """The bound of the cache."""
        return parse_size_bytes(self.cache)

    def url_of(self, node_id: str) -> str | None:
        """Return where the segments of a node go; each has a prefix of its own."""
        return None if self.to is None else f"{self.to}/{node_id}"
