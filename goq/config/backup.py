"""The settings of a node's backups."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from goq.config.section import ConfigSection, Parser, checked_text, optional
from goq.errors import UsageError
from goq.units import parse_duration_ms


def _place(value: Any, _field: str) -> Path | str:
    text = str(value)
    if text.startswith("s3://"):
        return text
    if ":/" in text or Path(text) == Path():
        raise ValueError(f"{text!r} is not a folder, and not s3://bucket/prefix")
    return Path(text)


def _duration(value: str) -> str:
    if parse_duration_ms(value) < 1000:
        raise ValueError(f"{value!r} is too short: at least 1s")
    return value


class BackupConfig(ConfigSection, frozen=True):
    """Backups of the running node to ``to``, a folder or ``s3://bucket/prefix``.

    Without it there are none.

    ``every`` is how often the node backs itself up, and ``keep`` how long backups stay; with
    ``None`` only commands do either.
    """

    PARSERS: ClassVar[dict[str, Parser]] = {
        "to": optional(_place),
        "every": optional(checked_text(_duration)),
        "keep": optional(checked_text(_duration)),
    }

    to: Path | str | None = None
    every: str | None = None
    keep: str | None = None

    def check(self, name: str) -> None:
        """Raise ``UsageError`` for backups that have no place."""
        for own in ("every", "keep"):
            if self.to is None and getattr(self, own) is not None:
                raise UsageError(f"{name}.{own}: set {name}.to, where the backups go, with it")

    @property
    def every_ms(self) -> int | None:
        """The time from one backup to the next in milliseconds; None without a schedule."""
        return None if self.every is None else parse_duration_ms(self.every)

    @property
    def keep_ms(self) -> int | None:
        """The age in milliseconds from which a backup is removed; None for never."""
        return None if self.keep is None else parse_duration_ms(self.keep)
