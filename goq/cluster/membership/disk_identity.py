"""Which data folder a node comes with: a wiped one must not pass for the one that it was.

The id is drawn when the folder becomes a member's, and is written in three places:

    cluster/disk-id     first; without it the folder has forgotten what it has promised
    topics/.disk-id     without it the folder has lost its messages
    disk-id             last: from here on the other two must be there

A copy of a folder has its id, too, and cannot be told from it.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from goq.cluster.metadata.state import MetadataState, active_partitions
from goq.errors import CorruptData
from goq.storage.disk import Disk

FILE_NAME = "disk-id"
TOPICS_FILE_NAME = ".disk-id"
_BYTES = 16


class DiskId(NamedTuple):
    """The id of a data folder, and whether the messages that it had are gone."""

    id: str
    has_lost_topics: bool = False


def load_disk_id(disk: Disk, data_dir: Path, cluster_dir: Path, topics_dir: Path) -> DiskId:
    """Return the id of a data folder, which gets one when it has none; blocks on the disk.

    Raises ``CorruptData`` when what the node has agreed on with others is not there any more.
    """
    known = _read(disk, data_dir, FILE_NAME)
    own = _read(disk, cluster_dir, FILE_NAME)
    if known and known != own:
        raise CorruptData(
            f"{cluster_dir} is gone, or is of another node: what this node has promised to others"
            " is not known any more, and it must not take part. Bring the folder back; or have"
            " the node leave (goq cluster leave, on another node), and start it anew with an empty"
            " data folder and --join"
        )
    if not known:
        own = own or secrets.token_hex(_BYTES)
        _write(disk, cluster_dir, FILE_NAME, own)
        _write(disk, topics_dir, TOPICS_FILE_NAME, own)
        _write(disk, data_dir, FILE_NAME, own)
        return DiskId(own)
    return DiskId(own, _read(disk, topics_dir, TOPICS_FILE_NAME) != own)


def acknowledge_topic_loss(disk: Disk, topics_dir: Path, own: str) -> None:
    """Take note that the others know of the loss of all topics; blocks on the disk."""
    _write(disk, topics_dir, TOPICS_FILE_NAME, own)


def lost_sole_replicas(state: MetadataState, node: str) -> frozenset[tuple[int, int]]:
    """Return the partitions, by topic id and number, of which a node has lost the only whole copy.

    Nobody leads them: an operator has to choose who does, and what is lost.
    """
    return frozenset(
        (topic.topic_id, place.partition)
        for place, topic, partition in active_partitions(state)
        if partition.leader is None and node in partition.damaged and node in partition.in_sync
    )


def _read(disk: Disk, folder: Path, name: str) -> str:
    if name not in disk.names(folder):
        return ""
    return bytes(disk.read(folder / name, 0, disk.size(folder / name))).decode(errors="replace")


def _write(disk: Disk, folder: Path, name: str, own: str) -> None:
    disk.make_dir(folder)
    disk.replace(folder / name, own.encode())
