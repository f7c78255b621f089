"""``goq`` with small bounds: checkpoints, snapshots and rolls of events come within seconds."""

from __future__ import annotations

from typing import Any

from goq import limits
from goq_cli.main import main

BOUNDS = {
    "CHECKPOINT_INTERVAL_BYTES": 96 * limits.KIB,
    "COLUMNS_BLOCK_BYTES": 16 * limits.KIB,
    "EVENT_SEGMENT_BYTES": 2 * limits.KIB,
    "SNAPSHOT_EVENTS_MIN": 10,
    "SNAPSHOT_EVENTS_MAX": 20,
}


def shrink() -> None:
    """Set the bounds."""
    names: Any = limits
    for name, value in BOUNDS.items():
        setattr(names, name, value)


if __name__ == "__main__":
    shrink()
    main()
