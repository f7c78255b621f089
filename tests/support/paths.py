"""Where the repository is, a topic's files are, and those of nodes that no test looks at."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 * 2**30  # for all that run at once: with less a node reserves some of its disk


def topic_dir(data_dir: Path, topic: str, root: str = "topics") -> Path:
    """Return the folder of a topic of a node; ``root`` may be ``archive``."""
    names = [path.name for path in (data_dir / root).iterdir()]
    (name,) = [name for name in names if name.rpartition("~")[0] == topic or name == topic]
    return data_dir / root / name


@contextmanager
def fast_folder(prefix: str) -> Iterator[Path]:
    """Yield a folder that goes with the block, in memory if there is room.

    Syncs cost nothing there; on a disk they are most of what a small request takes. It is for
    tests that ask nothing of a disk: those that kill nodes, or are about files, use ``tmp_path``.
    """
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    with tempfile.TemporaryDirectory(prefix=prefix, dir=_MEMORY if has_room else None) as name:
        yield Path(name)
