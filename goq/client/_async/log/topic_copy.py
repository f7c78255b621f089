"""The copy of a replay into another topic: each message exactly once, however often it runs.

Each partition of the source has a producer id, which is a function of the replay. Its copies have
sequences in each partition of the target. So the node drops copies that it has, also when the same
replay runs twice at once. The progress of another run is read from the target: the next sequence,
and the last copy, whose header names its original. The copy goes on after that message, whatever
retention has deleted of the source meanwhile. It does so too where the node had a sequence before:
another run may have stored other messages under it, as the source lacked some of them by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from goq import limits
from goq.client._async.http import Http
from goq.client._async.log.partition_reader import LogRange, read
from goq.client._async.log.replay_reader import read_replay
from goq.client._async.log.topic_reader import OnDamage
from goq.client._async.publish.frame_publisher import PublishTerms, post_frames
from goq.client.arguments import message_bytes
from goq.client.delivery_options import TopicPublishSettings
from goq.client.message_batch import MessageBatch
from goq.client.messages import LogMessage
from goq.client.protocol import routes
from goq.client.protocol.answers import ProducerAnswer, TopicAnswer, read_answer
from goq.client.replay_plan import CopyPlan, Replay, origin_of
from goq.errors import (
    Conflict,
    InvalidInput,
    LanesChanged,
    OutOfOrderSequence,
    TimedOut,
    TopicNotFound,
)
from goq.frame.encoder import ProducerMark, encode_frame
from goq.model import check_message

BATCH_BYTES: Final = limits.MIB
OVERTAKEN_MAX: Final = 20


class _Overtaken(Exception):
    """The target had some of the sequences: this run or another has stored copies under them."""


class _CopyProgress(NamedTuple):
    """The progress from one partition to another; ``offset`` is that of the last original."""

    sequence: int = 0
    offset: int = -1


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Messages of a request, and callbacks; ``before_send`` is awaited before each request."""

    batch: int = 1000
    before_send: Callable[[int], Awaitable[None]] | None = None
    on_stored: Callable[[int], None] | None = None
    on_reached: Callable[[int, int], None] | None = None
    on_damage: OnDamage | None = None


class TopicCopy:
    """One run of a replay into a topic.

    ``known`` is how many copies the target had when it began.
    """

    def __init__(self, http: Http, replay: Replay, target: str, options: CopyOptions) -> None:
        if replay.topic == target:
            raise InvalidInput(
                "a topic cannot be replayed into itself: its end would move on for ever",
                field="into",
            )
        self.known = 0
        self._http = http
        self._replay = replay
        self._target = target
        self._options = options
        self._reached: dict[tuple[int, int], _CopyProgress] = {}
        self._batches: dict[tuple[int, int], MessageBatch] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._count = self._size_bytes = 0

    @property
    def stored(self) -> int:
        """How many copies were stored since, by this run and by others of the same replay."""
        return self._total() - self.known

    async def run(self) -> None:
        """Copy all messages whose copies are not in the target.

        Raises ``TopicNotFound`` for a missing source, or a missing target that the node does not
        create; ``Conflict`` where the progress of an earlier run is not known, or if the source was
        deleted and created again since the replay began.
        """
        await self._ask_topics()
        self.known = self._total()
        overtaken = 0
        while True:
            before = self._total()
            try:
                await self._copy()
                return
            except (_Overtaken, OutOfOrderSequence, LanesChanged, TimedOut, TopicNotFound):
                # another run was faster, perhaps in a part, or the target is another one now
                await self._ask_topics()
                self.known = min(self.known, self._total())
                overtaken = 0 if self._total() > before else overtaken + 1
                if overtaken > OVERTAKEN_MAX:
                    raise

    async def _ask_topics(self) -> None:
        """Ask both topics how copies are placed, and the target how far they got."""
        answer = await self._http.call("GET", routes.topic(self._replay.topic))
        source = read_answer(TopicAnswer, answer)
        answer = await self._http.call("PUT", routes.topic(self._target), repeatable=True)
        target = read_answer(TopicAnswer, answer)
        self._plan = CopyPlan(
            len(source.partitions),
            len(target.partitions),
            TopicPublishSettings.of(source.settings).lanes,
            TopicPublishSettings.of(target.settings).lanes,
        )
        self._terms = PublishTerms(topic_id=target.id, lanes=self._plan.target_lanes)
        await self._ask_reached()

    def _total(self) -> int:
        return sum([reached.sequence for reached in self._reached.values()])

    async def _ask_reached(self) -> None:
        self._reached.clear()
        for partition in self._partitions():
            producer_id = self._replay.producer_id(self._target, partition)
            answer = await self._http.call("GET", routes.producer(self._target, producer_id))
            for each in read_answer(ProducerAnswer, answer).partitions:
                offset = await self._last_origin(partition, each.partition, each.offset)
                pair = (partition, each.partition)
                self._reached[pair] = _CopyProgress(each.next_sequence, offset)

    async def _last_origin(self, partition: int, target: int, offset: int | None) -> int:
        """Return the offset of the original of the copy at ``offset`` of the target."""
        if offset is not None:
            span = LogRange(offset)
            piece = await read(self._http, self._target, target, span, limit=1, wait_ms=0)
            for message in piece.messages:
                origin = origin_of(message.headers)
                if message.offset != offset or origin is None:
                    continue
                if self._plan.partition(partition, message.key) != target:
                    raise Conflict(
                        f"{self._target} or {self._replay.topic} has got other partitions since"
                        " this replay began: finish it into a new topic, or begin behind what is"
                        " there with --from-offset",
                        field="into",
                    )
                return origin.offset
        raise Conflict(
            f"how far this replay got is not known: {self._target} does not have the last message"
            f" any more that was replayed to its partition {target}; begin behind it with"
            " --from-offset",
            field="into",
        )

    async def _copy(self) -> None:
        self._forget_batches()
        messages = read_replay(
            self._http, self._replay, on_damage=self._options.on_damage, starts=self._starts()
        )
        try:
            async for message in messages:
                if self._take(message) and self._is_full():
                    await self._send()
        finally:
            await messages.aclose()
        await self._send()

    def _partitions(self) -> list[int]:
        if self._replay.partition is not None:
            return [self._replay.partition]
        return list(range(self._plan.source_partitions))

    def _starts(self) -> dict[int, int]:
        """Return where to read on, by partition, where each target partition has a copy."""
        targets = range(self._plan.target_partitions)
        starts: dict[int, int] = {}
        for partition in self._partitions():
            if self._plan.source_partitions == self._plan.target_partitions:
                targets = range(partition, partition + 1)
            pairs = [self._reached.get((partition, target)) for target in targets]
            reached = [pair.offset for pair in pairs if pair is not None]
            if len(reached) == len(pairs):
                starts[partition] = min(reached) + 1
        return starts

    def _take(self, message: LogMessage) -> bool:
        """Put a message into its batch, unless the target has its copy."""
        pair = (message.partition, self._plan.partition(message.partition, message.key))
        if message.offset <= self._reached.get(pair, _CopyProgress()).offset:
            return False
        copy = self._plan.copy(message)
        check_message(copy, field=f"the copy of {message.id}")
        size_bytes = message_bytes(copy)
        self._batches.setdefault(pair, MessageBatch()).add(copy, size_bytes)
        self._last[pair] = message.offset
        self._count += 1
        self._size_bytes += size_bytes
        return True

    def _is_full(self) -> bool:
        return self._count >= self._options.batch or self._size_bytes >= BATCH_BYTES

    async def _send(self) -> None:
        if not self._count:
            return
        if self._options.before_send is not None:
            await self._options.before_send(self._count)
        pairs = list(self._batches)
        frames = [self._frame(pair) for pair in pairs]
        results = await post_frames(self._http, self._target, frames, self._terms)
        stored = 0
        for pair, result in zip(pairs, results, strict=True):
            count = len(self._batches[pair])
            sequence = self._reached.get(pair, _CopyProgress()).sequence + count
            self._reached[pair] = _CopyProgress(sequence, self._last[pair])
            if not result.duplicate:
                stored += count
            if self._options.on_reached is not None:
                self._options.on_reached(pair[0], self._last[pair])
        self._forget_batches()
        if self._options.on_stored is not None:
            self._options.on_stored(stored)
        if any(result.duplicate for result in results):
            raise _Overtaken

    def _frame(self, pair: tuple[int, int]) -> tuple[int, bytes]:
        source, target = pair
        sequence = self._reached.get(pair, _CopyProgress()).sequence
        mark = ProducerMark(self._replay.producer_id(self._target, source), 0, sequence)
        lanes = TopicPublishSettings(self._plan.target_lanes)
        share = self._batches[pair].whole(target, topic=lanes)
        return target, encode_frame(share.columns, producer=mark)

    def _forget_batches(self) -> None:
        self._batches = {}
        self._count = self._size_bytes = 0
