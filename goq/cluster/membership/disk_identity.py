"""The id of a data folder, which keeps a wiped folder from passing for the one it was.

The id is drawn when the folder first becomes a member's. It is written to three files:

    cluster/disk-id     first; if it is missing, the folder has lost its Raft votes
    topics/.disk-id     second; if it is missing, the folder has lost its messages
    disk-id             last; once it exists, the other two must exist

A copy of a folder has the same id and cannot be told from the original.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from goq.errors import CorruptData
from goq.storage.disk import Disk

FILE_NAME = "disk-id"
TOPICS_FILE_NAME = ".disk-id"
_BYTES = 16


class DiskId(NamedTuple):
    """The id of a data folder, and whether its messages are gone."""

    id: str
    has_lost_topics: bool = False


def load_disk_id(disk: Disk, data_dir: Path, cluster_dir: Path, topics_dir: Path) -> DiskId:
    """Return the id of a data folder, drawing one if it has none; blocks on the disk.

    Raises ``CorruptData`` if the node's Raft state is missing.
    """
    known = _read(disk, data_dir, FILE_NAME)
    own = _read(disk, cluster_dir, FILE_NAME)
    if known and known != own:
        raise CorruptData(
            f"{cluster_dir} is missing, or belongs to another node: the votes that this node has"
            " cast are not known any more, and it must not take part. Bring the folder back; or"
            " have the node leave (goq cluster leave, on another node), and start it with an empty"
            " data folder and --join"
        )
    if not known:
        own = own or secrets.token_hex(_BYTES)
        _write(disk, cluster_dir, FILE_NAME, own)
        _write(disk, topics_dir, TOPICS_FILE_NAME, own)
        _write(disk, data_dir, FILE_NAME, own)
        return DiskId(own)
    return DiskId(own, _read(disk, topics_dir, TOPICS_FILE_NAME) != own)


def write_topics_id(disk: Disk, topics_dir: Path, own: str) -> None:
    """Mark the topics as belonging to this folder again; blocks on the disk."""
    _write(disk, topics_dir, TOPICS_FILE_NAME, own)


def _read(disk: Disk, folder: Path, name: str) -> str:
    if name not in disk.names(folder):
        return ""
    return bytes(disk.read(folder / name, 0, disk.size(folder / name))).decode(errors="replace")


def _write(disk: Disk, folder: Path, name: str, own: str) -> None:
    disk.make_dir(folder)
    disk.replace(folder / name, own.encode())
