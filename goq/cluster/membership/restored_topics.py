"""The topics of a restored folder, until the cluster that its node founds has them.

``goq restore`` leaves the file ``RESTORED`` in the folder. A node that founds a cluster on it,
alone, proposes each topic with the id of its folder and itself as the only replica, then the tokens
and the schedules. The file goes last: a start after a crash goes on. Other nodes join afterwards
and copy the messages. Without the file a folder with topics founds no cluster: it may be that of a
member which lost what it knew of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from goq.access.token_record import TokenRecord
from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata
from goq.cluster.metadata.broker_store import ReplicatedMetadataStore
from goq.cluster.metadata.features import has_adoption
from goq.cluster.metadata.state import MetadataState
from goq.errors import Conflict, InvalidInput, TooLarge, UsageError
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.catalog.rows import TopicRow
from goq.storage.data_dir_lock import RESTORED_NAME
from goq.storage.disk import Disk

_log = logging.getLogger("goq.cluster")


class RestoredTopics:
    """The topics, tokens and schedules of a restored folder; none of any other folder."""

    def __init__(
        self,
        disk: Disk,
        marker: Path,
        rows: Sequence[TopicRow] = (),
        groups: Mapping[str, Mapping[str, Mapping[str, str]]] | None = None,
        tokens: Mapping[str, TokenRecord] | None = None,
        schedules: Mapping[str, ScheduleRecord] | None = None,
        *,
        is_pending: bool = False,
    ) -> None:
        self._disk = disk
        self._marker = marker
        self._rows = rows
        self._groups = groups or {}
        self._tokens = tokens or {}
        self._schedules = schedules or {}
        self._is_pending = is_pending

    @classmethod
    async def load(
        cls, disk: Disk, data_dir: Path, local: LocalMetadata, *, is_alone: bool
    ) -> RestoredTopics:
        """Return what the folder has. Raises ``UsageError`` if its node does not begin alone."""
        marker = data_dir / RESTORED_NAME
        if RESTORED_NAME not in disk.names(data_dir):
            return cls(disk, marker)
        if not is_alone:
            raise UsageError(
                f"{data_dir} is restored from a backup, and a cluster gets it from its first node:"
                " start this node alone, with itself as the only one of --peers, and let the others"
                " join it",
                field="cluster.peers",
            )
        rows = [row for row in await local.topics() if not row.deleting]
        groups = {row.name: await local.groups(row.name) for row in rows}
        return cls(disk, marker, rows, groups, local.tokens, local.schedules, is_pending=True)

    @property
    def names(self) -> frozenset[str]:
        """The names that no other topic may take meanwhile."""
        return frozenset(row.name for row in self._rows) if self._is_pending else frozenset()

    async def adopt(
        self, broker: Broker, store: ReplicatedMetadataStore, state: MetadataState
    ) -> None:
        """Give the cluster what it does not have yet; safe to repeat. Raises ``GoqError``.

        What the cluster refuses is told, and asked for again by the next start.
        """
        if not self._is_pending or not has_adoption(state):
            return
        refused = [row.name for row in self._rows if not await self._adopt(row, broker, store)]
        for token in self._tokens.values():
            if token.id not in store.tokens:
                await store.put_token(replace(token, version=1))
        for schedule in self._schedules.values():
            if schedule.name not in store.schedules:
                await store.put_schedule(replace(schedule, version=1))
        self._is_pending = False
        if not refused:
            await broker.archive.in_thread(lambda: self._disk.remove(self._marker))
            _log.warning("the cluster has %d restored topics", len(self._rows))

    async def _adopt(self, row: TopicRow, broker: Broker, store: ReplicatedMetadataStore) -> bool:
        try:
            if row.id not in {topic.id for topic in await store.topics()}:
                await store.adopt_topic(row, self._groups.get(row.name, {}), broker.epoch)
            await broker.archive.take_up(row.folder)
        except (Conflict, InvalidInput, TooLarge) as error:
            _log.critical("the restored topic %s is not in the cluster: %s", row.name, error.detail)
            return False
        return True


def founds_alone(peers: Mapping[str, str], name: str, join: str | None) -> bool:
    """Whether a node is to be the first of a cluster."""
    return join is None and not peers.keys() - {name}
