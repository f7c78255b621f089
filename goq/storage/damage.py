"""What is known to be wrong with a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Damage:
    """Offsets that were acknowledged and cannot be read: quarantined, never served.

    The bytes stay where they are, from ``position`` up to ``end_position`` of ``path``; both are
    0 where the whole file is missing.
    """

    path: Path
    position: int
    end_position: int
    start_offset: int
    end_offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path}: bytes {self.position} to {self.end_position}"
            f" (offsets {self.start_offset} to {self.end_offset - 1}): {self.reason}"
        )
