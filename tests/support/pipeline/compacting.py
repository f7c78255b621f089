"""``python -m tests.support.pipeline.compacting ROOT TOPIC``: compact as if the hours were over.

Prints a line before each compaction.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from goq.pipeline.export.compaction import compact
from goq.pipeline.export.destination import LocalDestination


def main() -> None:
    root, topic = sys.argv[1:]
    target = LocalDestination(Path(root))
    with target.claimed([topic]):
        print("compacting", flush=True)
        compact(target, topic, time.time_ns() // 1000 + 7_200_000_000)


if __name__ == "__main__":
    main()
