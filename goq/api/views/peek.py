"""Pages of a group's messages in one state, without leasing them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from goq import limits
from goq.api.codec.messages import JsonMessages, messages_json, put_current_lane
from goq.api.schemas.messages import MessagesOut
from goq.api.views.log_read import RecentFrames
from goq.broker.broker import Broker
from goq.broker.dlq.place import DeadLetterPlace
from goq.broker.group.messages_by_state import runs_of
from goq.broker.outbox.dead_letter_headers import read_dead_letter
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.delivery.events.transitions import MessageState
from goq.delivery.group.attempt_ranges import AttemptRange
from goq.errors import InvalidInput
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.http.message import Response
from goq.model import Header, MessageId
from goq.units import format_time_us

DEAD_GROUP_HEADER = "goq-dead-group"
_BATCH = 1_000
_TIMES = {MessageState.LEASED: "lease_until", MessageState.RETRY: "due"}


def state_of(text: str) -> MessageState:
    """Return the state with this name; raise ``InvalidInput`` if there is none."""
    try:
        return MessageState(text)
    except ValueError:
        raise InvalidInput(
            f"{text[:50]!r} is not a state; there are {', '.join(MessageState)}", field="state"
        ) from None


class Page:
    """One page in progress: its messages, its position, and its remaining scan budget."""

    def __init__(self, limit: int) -> None:
        self.found = JsonMessages(limits.READ_BYTES_MAX)
        self.limit = limit
        self.time_slice = TimeSlice()
        self.frames = RecentFrames()
        self.scans_left = limits.PEEK_SCANNED_MESSAGES_MAX
        self.last_id: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether the page is complete."""
        return len(self.found) >= self.limit or self.scans_left <= 0

    def passed(self, topic: Topic, number: int, offset: int, count: int = 1) -> None:
        """Record that the next page starts after this message, the last of ``count``."""
        self.last_id = str(MessageId(topic.name, number, offset))
        self.scans_left -= count

    def answer(self, *, is_last: bool) -> Response:
        """Return the page with the id to continue after, unless it is the last page."""
        return self.found.response(MessagesOut([], None if is_last else self.last_id))


class Peek:
    """Pages of messages by state; a page may be short, since each answer scans a bounded range."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def page(
        self, topic: Topic, group: str, state: MessageState, limit: int, after: str | None
    ) -> Response:
        """Return messages in a state, but dead ones, and the id to continue after if there may be
        more.
        """
        page = Page(limit)
        now_ms = self._broker.clock.wall_ms()
        first, behind = position_of(after, topic.name)
        for partition in topic.partitions:
            if partition.identity.number < first:
                continue
            start = behind + 1 if partition.identity.number == first else 0
            async for part in runs_of(partition, group, state, start, now_ms):
                run = part._replace(start=max(part.start, start))
                if not await self._add_run(page, topic, partition, run, state, now_ms):
                    return page.answer(is_last=False)
        return page.answer(is_last=True)

    async def _add_run(
        self,
        page: Page,
        topic: Topic,
        partition: Partition,
        run: AttemptRange,
        state: MessageState,
        now_ms: int,
    ) -> bool:
        """Add the messages of a run that are in the state; return whether it was scanned whole."""
        number = partition.identity.number
        async for views, first, last in _batches(partition, run.start, run.end, page):
            expired = _expired(views, first, last, now_ms) if run.attempt == 0 else set()
            wanted = state is MessageState.EXPIRED
            if wanted and not expired and not page.is_full:
                page.passed(topic, number, last - 1, last - first)
                continue
            unseen = last - first
            for out in messages_json(topic, number, views, first, last):
                if page.time_slice.is_over:
                    await page.time_slice.next()
                unseen -= 1
                if page.is_full:
                    return False
                if (
                    state in (MessageState.READY, MessageState.EXPIRED)
                    and (out.offset in expired) != wanted
                ):
                    page.passed(topic, number, out.offset)
                    continue
                out.state, out.attempt = str(state), run.attempt
                put_current_lane(out, topic, partition)
                if state in _TIMES:
                    setattr(out, _TIMES[state], format_time_us(run.time_ms * 1000))
                if not await page.found.add(out):
                    return False
                page.passed(topic, number, out.offset)
            if unseen:  # compacted away, or damaged
                page.passed(topic, number, last - 1, unseen)
                if page.is_full:
                    return False
        return True

    async def dead_letters(
        self, place: DeadLetterPlace, group: str, limit: int, after: str | None
    ) -> Response:
        """Return dead letters of a group that were neither redriven nor purged, as :meth:`page`.

        In a topic that others share, letters of others are left out: they may have such a group
        too.
        """
        page = Page(limit)
        await self._broker.start_queue.wait_for(place.dead)
        dead = self._broker.topics.get(place.dead)
        if dead is None:
            return page.answer(is_last=True)
        first, behind = position_of(after, dead.name)
        marker = (DEAD_GROUP_HEADER, group.encode())

        def is_own(headers: Sequence[Header]) -> bool:
            if marker not in headers:
                return False
            return not place.is_shared or _died_in(headers) == place.origin

        for partition in dead.partitions:
            number = partition.identity.number
            if number < first:
                continue
            start = max(behind + 1 if number == first else 0, partition.start_offset)
            if not await self._add_letters(page, dead, partition, start, is_own):
                return page.answer(is_last=False)
        return page.answer(is_last=True)

    async def _add_letters(
        self,
        page: Page,
        dead: Topic,
        partition: Partition,
        start: int,
        is_own: Callable[[Sequence[Header]], bool],
    ) -> bool:
        """Add the letters of one group from an offset on; return whether all were scanned."""
        number = partition.identity.number
        async for views, first, last in _batches(partition, start, partition.end_offset, page):
            for offset in range(first, last):
                if page.is_full:
                    return False
                is_kept = not partition.marks.is_cancelled(offset)
                is_wanted = is_kept and is_own(_copy_headers(views, offset))
                letters = messages_json(dead, number, views, offset, offset + 1)
                for out in letters if is_wanted else ():
                    out.state = str(MessageState.DEAD)
                    if not await page.found.add(out):
                        return False
                page.passed(dead, number, offset)
                if page.time_slice.is_over:
                    await page.time_slice.next()
        return True


async def _batches(
    partition: Partition, start: int, end: int, page: Page
) -> AsyncIterator[tuple[list[FrameView], int, int]]:
    """Yield the frames of a run in batches, with the offsets that count in each."""
    count = min(page.limit, _BATCH)
    while start < end:
        reading = await page.frames.read(partition, start, min(end, start + count))
        last = min(end, start + count, reading.next_offset)
        if last <= start:
            return  # the log was cut meanwhile
        yield reading.frames, start, last
        await asyncio.sleep(0)
        start, count = last, min(2 * count, _BATCH)


def _expired(views: list[FrameView], start: int, end: int, now_ms: int) -> set[int]:
    """Return the offsets of messages whose time to live has passed."""
    found: set[int] = set()
    for view in views:
        column = view.column(Attribute.EXPIRES_AT)
        if column is None:
            continue
        base = view.header.base_offset
        first, last = max(start, base), min(end, view.header.end_offset)
        times_ms = column.cast("q")[first - base : last - base].tolist()
        found.update(o for o, time_ms in enumerate(times_ms, first) if 0 < time_ms <= now_ms)
    return found


def _copy_headers(views: list[FrameView], offset: int) -> Sequence[Header]:
    """Return the headers of a message that the outbox wrote: what others claim does not count."""
    for view in views:
        index = offset - view.header.base_offset
        is_copy = view.header.attributes & Attribute.COPY
        if is_copy and 0 <= index < view.header.message_count:
            (headers,) = view.headers(index, index + 1)
            return headers
    return ()


def _died_in(headers: Sequence[Header]) -> str | None:
    """Return the topic that a dead letter died in."""
    origin = read_dead_letter(headers).origin
    return None if origin is None else origin.topic


def position_of(after: str | None, topic: str) -> tuple[int, int]:
    """Return the partition and offset to continue after."""
    if after is None:
        return -1, -1
    try:
        message_id = MessageId.parse(after)
    except InvalidInput as error:
        error.field = "after"
        raise
    if message_id.topic != topic:
        raise InvalidInput(f"{after[:300]} is not in topic {topic}", field="after")
    return message_id.partition, message_id.offset
