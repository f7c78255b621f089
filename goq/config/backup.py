"""The settings of a node's backups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from goq.errors import InvalidInput
from goq.units import parse_duration_ms


class BackupConfig(BaseModel):
    """Backups of the running node to ``to``, a folder or ``s3://bucket/prefix``.

    Without it there are none.

    ``every`` is how often the node backs itself up, and ``keep`` how long backups stay; with
    ``None`` only commands do either.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: Path | str | None = None
    every: str | None = None
    keep: str | None = None

    @field_validator("every", "keep", mode="before")
    @classmethod
    def _may_be_none(cls, value: Any) -> Any:
        return None if value == "none" else value

    @field_validator("to", mode="before")
    @classmethod
    def _is_a_place(cls, value: Any) -> Any:
        text = str(value)
        if value is None or value == "none":
            return None
        if text.startswith("s3://"):
            return text
        if ":/" in text or Path(text) == Path():
            raise ValueError(f"{text!r} is not a folder, and not s3://bucket/prefix")
        return Path(text)

    @field_validator("every", "keep")
    @classmethod
    def _is_a_duration(cls, value: str | None) -> str | None:
        try:
            if value is not None and parse_duration_ms(value) < 1000:
                raise ValueError(f"{value!r} is too short: at least 1s")
        except InvalidInput as error:
            raise ValueError(error.detail) from None
        return value

    @property
    def every_ms(self) -> int | None:
        """The time from one backup to the next in milliseconds; None without a schedule."""
        return None if self.every is None or self.to is None else parse_duration_ms(self.every)

    @property
    def keep_ms(self) -> int | None:
        """The age in milliseconds from which a backup is removed; None for never."""
        return None if self.keep is None else parse_duration_ms(self.keep)
