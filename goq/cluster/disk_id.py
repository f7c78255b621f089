"""Which data folder a node comes with: a wiped one must not pass for the one that it was."""

from __future__ import annotations

import secrets
from pathlib import Path

from goq.storage.files import Disk

FILE_NAME = "disk-id"
_BYTES = 16


def disk_id(disk: Disk, data_dir: Path) -> str:
    """Return the id of a data folder, which gets one when it has none; blocks on the disk."""
    path = data_dir / FILE_NAME
    if FILE_NAME not in disk.names(data_dir):
        disk.replace(path, secrets.token_hex(_BYTES).encode())
    return bytes(disk.read(path, 0, disk.size(path))).decode(errors="replace")
