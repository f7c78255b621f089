"""A node as a member of its cluster: what all agree on becomes what it does.

Everything here runs on the node's event loop. The state of the cluster comes from Raft, whole and
newest, whenever it changes; this node's topics and replicas are made to follow it, step by step
and again and again (*level-triggered*): a change that is missed is made up for by the next.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

from goq import limits
from goq.broker.broker import Broker
from goq.broker.tasks import Tasks
from goq.cluster.calls.calling import Calling
from goq.cluster.controlling import Controlling
from goq.cluster.disk_id import DiskId, only_copies_lost, topics_are_made_up_for
from goq.cluster.fitness import Fitness
from goq.cluster.heartbeats import decode_heartbeat, encode_heartbeat
from goq.cluster.local_topics import LocalTopics
from goq.cluster.metadata.commands import (
    AlterInSync,
    ChangeSettings,
    EmptyNode,
    RegisterNode,
)
from goq.cluster.metadata.state import Partition, State, Topic, places
from goq.cluster.metadata.watch import Heartbeat
from goq.cluster.proposing import Proposing
from goq.cluster.raft.driver import View
from goq.cluster.readiness import still_to_come
from goq.cluster.replication.mending import (
    MendAnswer,
    MendRequest,
    decode_mend_answer,
    decode_mend_request,
)
from goq.cluster.replication.mending import encode as encode_mend
from goq.cluster.replication.messages import (
    FetchAnswer,
    FetchRequest,
    PartitionKey,
    decode_answer,
    decode_request,
    encode,
)
from goq.cluster.replication.repairs import Repairs
from goq.cluster.replication.replica import Part
from goq.cluster.replication.replicas import Replicas
from goq.cluster.reporting import Reporting
from goq.cluster.shared_metadata import group_settings, topic_rows
from goq.errors import (
    Conflict,
    GoqError,
    InvalidFrame,
    NodeNotFound,
    NotLeader,
    PartitionNotFound,
    TopicNotFound,
    Unavailable,
)
from goq.storage.files import Disk

_log = logging.getLogger("goq.cluster")
FETCH, HEARTBEAT, MEND = "/cluster/fetch", "/cluster/heartbeat", "/cluster/mend"
_HEAD_BYTES = 4
_AGAIN_S = 0.2
_LOOK_S = 0.01
_NOT_THE_ONE = (
    "the cluster knows {0} with another disk; what that had, and what it has promised, is not here."
    " Bring the old data folder back; or stop this node, take it out on another one"
    " (goq cluster leave {0}), and start it again with an empty folder and --join"
)


class Member:
    """This node's part in the cluster, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        broker: Broker,
        disk: Disk,
        own_disk: DiskId,
        proposing: Proposing,
        calling: Calling,
        take_out: Callable[[str], Awaitable[None]],
    ) -> None:
        self.name = name
        self._disk = own_disk
        self.incarnation = incarnation
        self.controlling = Controlling(proposing, take_out)
        self.replicas = Replicas(
            name,
            LocalTopics(broker),
            disk,
            broker.executor,
            self._fetch_from,
            self._propose_in_sync,
            on_failure=self._failed,
            is_heard=self._is_heard,
        )
        self.reporting = Reporting(self.replicas, lambda: self.state, self._call)
        self.fitness = Fitness(disk, broker.topics_dir.parent, self.replicas.in_thread)
        self.repairs = Repairs(self.replicas, self._ask_for_frames)
        self._broker = broker
        self._proposing = proposing
        self._calling = calling
        self._leader: str | None = None
        self._registration: RegisterNode | None = None
        self._deleted: set[int] = set()
        self._taken_up: dict[str, object] = {}
        self._stopping = ""
        self._heard_s = -math.inf
        self._refused_by: tuple[str, ...] = ()
        self._min_insync = 0
        self.has_left = False
        self._has_started = False
        self._changed = asyncio.Event()
        self._next_change: asyncio.Future[None] | None = None
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
        self._registration = RegisterNode(
            self.name, self.incarnation, http_url, cluster_address, rack, self._disk.id
        )
        works = (
            self._follow(),
            self._beat(),
            self._look_at_replicas(),
            self.repairs.scrub(),
            self.fitness.watch(),
            self.controlling.run(),
        )
        self._running = [self._tasks.start(work) for work in works]
        self._changed.set()

    async def hand_over(self) -> None:
        """Have other nodes lead what this one leads, before it stops; return when they do.

        Nobody waits for long: what has no other replica in sync is led by nobody then.
        """
        self._stopping = "it is being stopped"
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.HAND_OVER_TIMEOUT_MS / 1000):
                await self._say_alive()
                while any(replica.leading is not None for replica in self.replicas):
                    await asyncio.sleep(_LOOK_S)

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
        if view.refused_by and not self._refused_by and view.leader is None:
            _log.critical("this node takes no part: %s", _NOT_THE_ONE.format(self.name))
        self._leader, self._refused_by = view.leader, view.refused_by
        self.controlling.lead(view.is_leader)

    def agreed(self) -> None:
        """Hear that the state of the cluster has changed."""
        self._changed.set()
        self.controlling.changed()
        if self._next_change is not None:
            self._next_change.set_result(None)
            self._next_change = None

    def waits_for(self) -> list[str]:
        """Return what has yet to come until this node has started; nothing ever after.

        A node that falls behind later is of use all the same, as a way to the others.
        """
        if self._refused_by and self._leader is None:
            return [f"its disk: {_NOT_THE_ONE.format(self.name)}"]
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
        head = encode(answer)
        return [len(head).to_bytes(_HEAD_BYTES, "little"), head, *buffers]

    async def answer_heartbeat(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Hear that a node is alive."""
        self.controlling.hear(node, decode_heartbeat(body))
        return []

    async def answer_mend(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer a node whose replica is damaged: a head behind its length, then frames."""
        answer, buffers = await self.repairs.answer(decode_mend_request(body))
        head = encode_mend(answer)
        return [len(head).to_bytes(_HEAD_BYTES, "little"), head, *buffers]

    # Following what is agreed on

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._register()
                await self._become(self.state)
                await self._make_up_for_loss(self.state)
            except (GoqError, OSError) as error:
                _log.warning("this node does not follow the cluster yet: %s", error)
                await asyncio.sleep(_AGAIN_S)
                self._changed.set()

    async def _register(self) -> None:
        known = self.state.nodes.get(self.name)
        if self._registration is not None and (
            known is None or known.incarnation != self.incarnation
        ):
            with suppress(GoqError):  # who registers without having been heard of counts as silent
                await self._say_alive()
            if self._disk.has_lost_topics and known is not None:
                _log.critical("the messages on this node are gone; it copies them from the others")
                await self._proposing.propose(EmptyNode(self.name, self._disk.id))
            await self._proposing.propose(self._registration)
        settings = self.state.settings
        if settings.version == 1 and settings.min_insync != self._min_insync:
            with suppress(Conflict):  # another node was first
                await self._proposing.propose(ChangeSettings(1, min_insync=self._min_insync))

    async def _make_up_for_loss(self, state: State) -> None:
        """Forget that messages were lost, once others have led wherever they were the only ones."""
        if not self._disk.has_lost_topics or only_copies_lost(state, self.name):
            return
        disk, topics_dir = self.replicas.disk, self._broker.topics_dir
        await self.replicas.in_thread(
            lambda: topics_are_made_up_for(disk, topics_dir, self._disk.id)
        )
        self._disk = self._disk._replace(has_lost_topics=False)

    def _repaired(self) -> frozenset[tuple[int, int]]:
        """Return what is whole again; what is empty has no damage, and is not whole for that."""
        if not self._disk.has_lost_topics:
            return self.repairs.repaired
        return self.repairs.repaired - only_copies_lost(self.state, self.name)

    async def _become(self, state: State) -> None:
        rows = {row.name: row for row in topic_rows(state)}
        for name, row in rows.items():
            known = state.topics[name].version, state.groups.get(name)
            if self._taken_up.get(name) != known:
                await self._broker.take_up(row, group_settings(state, name))
                self._taken_up[name] = known
        parts = {
            PartitionKey(name, topic.topic_id, number): _part(state, partition)
            for name, topic in state.topics.items()
            if name in rows
            for number, partition in enumerate(topic.partitions)
            if self.name in partition.holders
        }
        self.replicas.server.pace(state.settings.move_bytes_per_s, _in_the_making(state, self.name))
        self.replicas.agree(parts)
        for key in [r.key for r in self.replicas if r.key not in parts and r.key.topic in rows]:
            await self._give_up(key)
        for name in self._broker.topics.keys() - rows.keys():
            await self._drop(name, state.topics.get(name))
        for name, topic in state.topics.items():
            if topic.deleting and topic.topic_id not in self._deleted:
                await self._drop(name, topic)

    async def _give_up(self, key: PartitionKey) -> None:
        """Delete a replica that has moved to another node."""
        await self.replicas.drop(key)
        directory = self._broker.topics_dir / key.topic / str(key.number)
        await self.replicas.in_thread(lambda: self.replicas.disk.remove_dir(directory))

    async def _drop(self, name: str, topic: Topic | None) -> None:
        self._taken_up.pop(name, None)
        keys = [replica.key for replica in self.replicas if replica.key.topic == name]
        await asyncio.gather(*(self.replicas.drop(key) for key in keys))
        await self._broker.drop(name)
        if topic is not None:
            self._deleted.add(topic.topic_id)

    # Being heard of

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(limits.NODE_HEARTBEAT_MS / 1000)
            self._tasks.start(self._say_alive())  # one that hangs does not hold up the next

    async def _say_alive(self) -> None:
        try:
            await self._send_heartbeat()
        except NodeNotFound:
            if self.name in self.state.nodes and not self.has_left:
                self.has_left = True
                _log.warning(
                    "this node has left the cluster; stop it. To take part again it needs an empty"
                    " folder and --join"
                )
        except GoqError as error:
            _log.debug("no heartbeat: %s", error)

    async def _send_heartbeat(self) -> None:
        heartbeat = Heartbeat(
            self.incarnation,
            self._stopping or self.fitness.reason,
            frozenset(self._deleted & {t.topic_id for t in self.state.topics.values()}),
            self.repairs.damaged,
            self._repaired(),
            self._disk.id,
        )
        leader, said_s = self._leader, asyncio.get_running_loop().time()
        if leader is None:
            return
        if leader == self.name:
            self.controlling.hear(self.name, heartbeat)
        else:
            await self._call(leader, HEARTBEAT, encode_heartbeat(heartbeat))
        self._heard_s = max(self._heard_s, said_s)

    def _is_heard(self) -> bool:
        """Whether the controller has heard this node so lately that it cannot have fenced it.

        From when a heartbeat was sent: the controller counts from when it came, which is later. A
        node that stood still finds out by this, before it hears what was decided meanwhile.
        """
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        return silent_s < limits.NODE_SESSION_TIMEOUT_MS / 1000

    # What replicas need

    async def _fetch_from(
        self, leader: str, request: FetchRequest
    ) -> tuple[FetchAnswer, memoryview]:
        answer = await self._call(leader, FETCH, encode(request), request.wait_ms)
        head, frames = _parted(answer)
        return decode_answer(head), frames

    async def _ask_for_frames(
        self, node: str, request: MendRequest
    ) -> tuple[MendAnswer, memoryview]:
        head, frames = _parted(await self._call(node, MEND, encode_mend(request)))
        return decode_mend_answer(head), frames

    async def _call(self, node: str, path: str, body: bytes, wait_ms: int = 0) -> bytes:
        known = self.state.nodes.get(node)
        if known is None:
            raise Unavailable(f"node {node} is not known here yet")
        timeout_s = (limits.CALL_TIMEOUT_MS + wait_ms) / 1000
        return await self._calling.call(known.http_url, path, body, timeout_s)

    def leader_url(self, topic: str, number: int) -> str | None:
        """Return where a partition is led, None for this node.

        Raises ``NotLeader`` while nobody does, ``TopicNotFound`` and ``PartitionNotFound``.
        """
        known = self._topic(topic)
        if number >= len(known.partitions):
            raise PartitionNotFound(f"topic {topic} has no partition {number}", field="partition")
        return self._url_of(known.partitions[number].leader, f"partition {number} of {topic}")

    def leader_urls(self, topic: str | None) -> list[str | None]:
        """Return who leads a partition of a topic, each once, None for this node.

        Without a topic, all nodes that are up. Partitions that nobody leads are left out.
        """
        if topic is None:
            names = {name for name, node in self.state.nodes.items() if node.is_up}
        else:
            leaders = {partition.leader for partition in self._topic(topic).partitions}
            names = {name for name in leaders if name is not None}
        return [self._url_of(name, "this") for name in sorted(names | {self.name})]

    def leaders(self, topic: str) -> list[str | None]:
        """Return the names of the nodes that lead its partitions, None where nobody does.

        Raises ``TopicNotFound``.
        """
        return [partition.leader for partition in self._topic(topic).partitions]

    def next_change(self) -> asyncio.Future[None]:
        """Return what is done when what is agreed on has changed."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        return self._next_change

    def _url_of(self, node: str | None, what: str) -> str | None:
        if node == self.name:
            return None
        known = self.state.nodes.get(node) if node is not None else None
        if known is None:
            raise NotLeader(f"nobody leads {what} now")
        return known.http_url

    def _topic(self, name: str) -> Topic:
        topic = self.state.topics.get(name)
        if topic is None or topic.deleting:
            raise TopicNotFound(f"there is no topic {name[:200]!r}", field="topic")
        return topic

    async def call_leader(self, topic: str, number: int, path: str, body: bytes) -> bytes:
        """Call the node that leads a partition; ``NotLeader`` if none does, as far as is known."""
        known = self.state.topics.get(topic)
        leader = None
        if known is not None and number < len(known.partitions):
            leader = known.partitions[number].leader
        if leader is None:
            raise NotLeader(f"nobody leads partition {number} of {topic} now")
        return await self._call(leader, path, body, limits.ELSEWHERE_WAIT_MS)

    async def _look_at_replicas(self) -> None:
        while True:
            await asyncio.sleep(limits.IN_SYNC_LOOK_MS / 1000)
            self.replicas.check_in_sync()
            self.repairs.look()

    async def _propose_in_sync(self, key: PartitionKey, part: Part, wanted: frozenset[str]) -> Part:
        nodes = self.state.nodes
        incarnations = {node: nodes[node].incarnation for node in wanted if node in nodes}
        command = AlterInSync(
            key.topic,
            key.topic_id,
            key.number,
            part.version,
            self.name,
            part.leader_epoch,
            incarnations,
        )
        await self._proposing.propose_surely(command)
        state = self.state
        topic = state.topics.get(key.topic)
        if topic is None or topic.topic_id != key.topic_id:
            raise NotLeader(f"topic {key.topic} is gone")
        return _part(state, topic.partitions[key.number])

    def _failed(self, key: PartitionKey, error: Exception) -> None:
        _log.error("partition %d of %s: %s", key.number, key.topic, error)
        self.fitness.failed(error)

    def kept_for_replicas(self, topic: str, number: int) -> int | None:
        """Return the first message of a partition led here that a replica in sync has not got."""
        return self.replicas.needed_from(topic, number)


def _parted(answer: bytes) -> tuple[memoryview, memoryview]:
    """Return the head of an answer and what comes behind it."""
    whole = memoryview(answer)
    head_bytes = int.from_bytes(whole[:_HEAD_BYTES], "little")
    return whole[_HEAD_BYTES : _HEAD_BYTES + head_bytes], whole[_HEAD_BYTES + head_bytes :]


def _in_the_making(state: State, leader: str) -> dict[PartitionKey, frozenset[str]]:
    """Return who copies partitions that a node leads because a move has begun."""
    return {
        PartitionKey(place.topic, topic.topic_id, place.partition): frozenset(copying)
        for place, topic, partition in places(state)
        if partition.moving
        and partition.leader == leader
        and (copying := set(partition.adding) - set(partition.in_sync))
    }


def _part(state: State, partition: Partition) -> Part:
    return Part(
        partition.leader,
        partition.leader_epoch,
        partition.in_sync,
        partition.holders,
        min(state.settings.min_insync, len(partition.replicas)),
        partition.version,
        partition.damaged,
    )
