"""A node as a member of its cluster: what all agree on becomes what it does.

Everything here runs on the node's event loop. The state of the cluster comes from Raft, whole and
newest, whenever it changes; this node's topics and replicas are made to follow it, step by step
and again and again (*level-triggered*): a change that is missed is made up for by the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from goq import limits
from goq.broker.broker import Broker
from goq.broker.tasks import Tasks
from goq.cluster.asking import Asking, headed
from goq.cluster.becoming import Becoming
from goq.cluster.calls.calling import Calling
from goq.cluster.controlling import Controlling
from goq.cluster.disk_id import disk_id
from goq.cluster.fitness import Fitness
from goq.cluster.handing_over import HandingOver
from goq.cluster.heartbeats import decode_heartbeat
from goq.cluster.leader_map import LeaderMap
from goq.cluster.local_topics import LocalTopics
from goq.cluster.metadata.commands import (
    AlterInSync,
    ChangeSettings,
    RegisterNode,
)
from goq.cluster.metadata.state import State
from goq.cluster.metadata.watch import Heartbeat
from goq.cluster.parts import part_of
from goq.cluster.proposing import Proposing
from goq.cluster.raft.driver import View
from goq.cluster.readiness import still_to_come
from goq.cluster.replication.archives import Archives, decode_archive_request
from goq.cluster.replication.custody import Custody
from goq.cluster.replication.mending import (
    decode_mend_request,
)
from goq.cluster.replication.mending import encode as encode_mend
from goq.cluster.replication.messages import (
    PartitionKey,
    decode_request,
    encode,
)
from goq.cluster.replication.repairs import Repairs
from goq.cluster.replication.replica import Part, Replica
from goq.cluster.replication.replicas import Replicas
from goq.cluster.reporting import Reporting
from goq.cluster.speaking import Speaking
from goq.errors import Conflict, GoqError, InvalidFrame, NotLeader, TopicNotFound
from goq.storage.files import Disk

_log = logging.getLogger("goq.cluster")
_AGAIN_S = 0.2


class Member:
    """This node's part in the cluster, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        broker: Broker,
        disk: Disk,
        proposing: Proposing,
        calling: Calling,
        take_out: Callable[[str], Awaitable[None]],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        topics = LocalTopics(broker)
        self.controlling = Controlling(proposing, take_out)
        self.asking = Asking(lambda: self.state, calling)
        self.map = LeaderMap(name, lambda: self.state, self.asking.call)
        self.speaking = Speaking(
            name, self._heartbeat, self.controlling.hear, self.asking.call, self._is_listed
        )
        self.replicas = Replicas(
            name,
            topics,
            Custody(broker.metadata, broker.archive, broker.clock, topics.settings),
            disk,
            broker.executor,
            self.asking.fetch,
            self._propose_in_sync,
            on_failure=self._failed,
            is_heard=self.speaking.is_heard,
        )
        self.reporting = Reporting(self.replicas, lambda: self.state, self.asking.call)
        self.fitness = Fitness(disk, broker.topics_dir.parent, self.replicas.in_thread)
        self.repairs = Repairs(self.replicas, self.asking.mend)
        self.archives = Archives(
            broker.archive, self.replicas, topics.settings, self._others, self.asking.archive
        )
        self._handing_over = HandingOver(broker, self.replicas, self.speaking, self._is_up)
        self._becoming = Becoming(broker, self.replicas)
        self._data_dir = broker.topics_dir.parent
        self._proposing = proposing
        self._calling = calling
        self._registration: RegisterNode | None = None
        self._was_wiped = False
        self._min_insync = 0
        self._has_started = False
        self._changed = asyncio.Event()
        self._tasks = Tasks()
        self._running: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        """What all nodes agree on, as far as it is known here."""
        return self._proposing.state

    def start(self, http_url: str, cluster_address: str, rack: str | None, min_insync: int) -> None:
        """Take part; other nodes and clients reach this node at ``http_url``.

        ``min_insync`` counts if the cluster has just begun.
        """
        self._min_insync = min_insync
        disk = disk_id(self.replicas.disk, self._data_dir)
        self._registration = RegisterNode(
            self.name, self.incarnation, http_url, cluster_address, rack, disk
        )
        works = (
            self._follow(),
            self.speaking.beat(lambda: not self._was_wiped),
            self._look_at_replicas(),
            self.repairs.scrub(),
            self.archives.run(),
            self.fitness.watch(),
            self.controlling.run(),
        )
        self._running = [self._tasks.start(work) for work in works]
        self._changed.set()

    async def hand_over(self) -> None:
        """Have other nodes lead what this one leads, before it stops; return when they do."""
        await self._handing_over.run()

    def _is_up(self) -> bool:
        known = self.state.nodes.get(self.name)
        return known is not None and known.incarnation == self.incarnation and known.is_up

    async def stop(self) -> None:
        """Take part no more: all replicas are closed on return."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self.repairs.close()
        await self.replicas.close()
        await self._calling.close()

    def viewed(self, view: View) -> None:
        """Hear how things stand in the Raft group."""
        self.speaking.leader = view.leader
        self.controlling.lead(view.is_leader)

    def agreed(self) -> None:
        """Hear that the state of the cluster has changed."""
        self._changed.set()
        self.controlling.changed()
        self.map.changed()

    def waits_for(self) -> list[str]:
        """Return what has yet to come until this node has started; nothing ever after.

        A node that falls behind later is of use all the same, as a way to the others.
        """
        if self._has_started:
            return []
        found = still_to_come(self.state, self.name, self.incarnation)
        self._has_started = not found
        return found

    # What other nodes ask

    async def answer_fetch(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer a follower: a head behind its length, then frames."""
        request = decode_request(body)
        if request.node != node:
            raise InvalidFrame(f"{node} asks as {request.node}")
        answer, buffers = await self.replicas.server.fetch(request)
        return headed(encode(answer), buffers)

    async def answer_heartbeat(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Hear that a node is alive."""
        self.controlling.hear(node, decode_heartbeat(body))
        return []

    async def answer_mend(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer a node whose replica is damaged: a head behind its length, then frames."""
        answer, buffers = await self.repairs.answer(decode_mend_request(body))
        return headed(encode_mend(answer), buffers)

    async def answer_archive(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer a node that lacks something in its archive."""
        request = decode_archive_request(body)
        topic = self.state.topics.get(request.key.topic)
        if topic is None or topic.topic_id != request.key.topic_id:
            raise TopicNotFound(f"there is no such topic {request.key.topic} here", field="topic")
        return [await self.archives.answer(request)]

    # Following what is agreed on

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if not self._is_wiped():
                    await self._register()
                    await self._becoming.become(self.state)
            except (GoqError, OSError) as error:
                _log.warning("this node does not follow the cluster yet: %s", error)
                await asyncio.sleep(_AGAIN_S)
                self._changed.set()

    def _is_wiped(self) -> bool:
        """Whether the cluster knows this node with another data folder: then it does nothing.

        It would count as having what it has lost.
        """
        known, own = self.state.nodes.get(self.name), self._registration
        is_wiped = known is not None and own is not None and known.disk != own.disk
        if is_wiped and not self._was_wiped:
            _log.critical(
                "the data folder of %s is not the one that the cluster knows it with, so this node"
                " takes no part: bring the old folder back; or stop it, take it out from another"
                " node (goq cluster leave %s), and start it with an empty folder and a new id",
                self.name,
                self.name,
            )
        self._was_wiped = is_wiped
        return is_wiped

    async def _register(self) -> None:
        known = self.state.nodes.get(self.name)
        if self._registration is not None and (
            known is None or known.incarnation != self.incarnation
        ):
            with suppress(GoqError):  # who registers without having been heard of counts as silent
                await self.speaking.speak()
            always = self._becoming.synced_at_once(self.state)
            keeps = tuple(sorted(t for t in self._becoming.kept.ids if always.get(t)))
            await self._proposing.propose(replace(self._registration, keeps=keeps))
        settings = self.state.settings
        if settings.version == 1 and settings.min_insync != self._min_insync:
            with suppress(Conflict):  # another node was first
                await self._proposing.propose(ChangeSettings(1, min_insync=self._min_insync))

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self.incarnation,
            self.fitness.reason,
            frozenset(self._becoming.deleted & {t.topic_id for t in self.state.topics.values()}),
            self.repairs.damaged,
            self.repairs.repaired,
            self._handing_over.is_stopping,
        )

    def _is_listed(self) -> bool:
        return self.name in self.state.nodes

    # What replicas need

    def _others(self, replica: Replica) -> list[str]:
        """Return all other nodes, those with replicas of the partition first."""
        holders = replica.others
        return [*holders, *sorted(self.state.nodes.keys() - {*holders, self.name})]

    async def _look_at_replicas(self) -> None:
        while True:
            await asyncio.sleep(limits.IN_SYNC_LOOK_MS / 1000)
            self.replicas.check_in_sync()
            self.repairs.look()

    async def _propose_in_sync(self, key: PartitionKey, part: Part, wanted: frozenset[str]) -> Part:
        seen = dict(zip(part.replicas, part.incarnations, strict=True))
        command = AlterInSync(
            key.topic,
            key.topic_id,
            key.number,
            part.version,
            self.name,
            part.leader_epoch,
            {node: seen.get(node, 0) for node in wanted},
            part.returned,
        )
        await self._proposing.propose_surely(command)
        state = self.state
        topic = state.topics.get(key.topic)
        if topic is None or topic.topic_id != key.topic_id:
            raise NotLeader(f"topic {key.topic} is gone")
        return part_of(state, topic.partitions[key.number])

    def _failed(self, key: PartitionKey, error: Exception) -> None:
        _log.error("partition %d of %s: %s", key.number, key.topic, error)
        self.fitness.failed(error)

    def kept_for_replicas(self, topic: str, number: int) -> int | None:
        """Return the first message of a partition led here that a replica in sync has not got."""
        return self.replicas.needed_from(topic, number)
