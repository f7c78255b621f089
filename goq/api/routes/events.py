"""Route of the event log of a partition."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from goq import limits
from goq.api.codec.frames import frames_response
from goq.api.codec.messages import encode_json, json_response
from goq.api.codec.negotiation import wants_frames
from goq.api.codec.request import query_flag, query_int
from goq.api.needs import READ
from goq.api.route import Parameter, Route
from goq.api.routing_policy import ToPartitionLeader, partition_of_query
from goq.api.values import FLAG, integer
from goq.broker.broker import Broker
from goq.broker.retention.tiered_log import tiered_logs
from goq.clock import TimeSlice
from goq.delivery.events.frame_codec import StoredEvent, decode_event_frame
from goq.errors import InvalidFrame, InvalidInput
from goq.http.message import Request, Response
from goq.storage.log.reader import ReadResult
from goq.units import format_time_us

_JSON_EVENTS_MAX = 1_000
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


class EventsOut(msgspec.Struct):
    """Events by sequence; ``damaged`` lists sequences that cannot be read."""

    events: list[dict[str, Any]]
    next: int
    damaged: list[tuple[int, int]]


class EventRoutes:
    """Reads of the event log, in the order of decisions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/events",
                self.read,
                "Read a partition's events",
                answer=EventsOut,
                parameters=(
                    Parameter("partition", "which partition to read", integer(), required=True),
                    Parameter("offset", "the first sequence; default the first kept", integer()),
                    Parameter(
                        "limit", "at most so many events", integer(1, limits.READ_MESSAGES_MAX)
                    ),
                    Parameter("include_deleted", "also what the archive has", FLAG),
                    Parameter(
                        "background", "as fast as live traffic leaves room for, no faster", FLAG
                    ),
                ),
                errors=("topic_not_found", "partition_not_found", "too_many_requests"),
                gives_frames=True,
                routing=ToPartitionLeader(partition_of_query),
                needs=READ,
            )
        ]

    async def read(self, request: Request, name: str) -> Response:
        """Read events of a partition from a sequence on; frames come whole."""
        topic = self._broker.topic(name)
        if "partition" not in request.query:
            raise InvalidInput("say which partition to read", field="partition")
        number = query_int(request, "partition", 0)
        partition = topic.partitions[number]
        as_frames = wants_frames(request)
        most = limits.READ_MESSAGES_MAX if as_frames else _JSON_EVENTS_MAX
        limit = query_int(request, "limit", most, minimum=1, maximum=limits.READ_MESSAGES_MAX)
        asked = query_int(request, "offset", 0)
        background = query_flag(request, "background")
        whole = None
        if query_flag(request, "include_deleted"):
            whole = tiered_logs(self._broker.archive, partition).events
        reader, end = whole or partition.event_reader, partition.event_high_watermark
        stop = end if whole is None else whole.read_end(asked, end)
        start = reader.segments[0].base_offset
        offset = max(start, asked)
        most_bytes = limits.READ_BYTES_MAX
        if background:
            most_bytes = (
                limits.BACKGROUND_PIECE_BYTES if as_frames else limits.BACKGROUND_JSON_BYTES
            )
        read = partial(reader.read, offset, stop, messages_max=limit, bytes_max=most_bytes)
        work = partial(_read, read, as_frames=as_frames)
        if background:
            found = await self._broker.background.run(work)
        elif whole is not None:
            found = await self._broker.archive.in_thread(work)
        else:
            found = await partition.in_thread(work)
        next_offset = found.frames.next_offset
        if as_frames:
            deleted = whole.gaps(offset, next_offset) if whole is not None else []
            return _frames(number, found.frames, _Bounds(start, end), deleted)
        events, after = await _encoded(
            [each for each in found.events if offset <= each.sequence < offset + limit],
            min(next_offset, offset + limit),
        )
        damaged = [(first, last) for first, last in found.damaged if first < after]
        return json_response(EventsOut(events, after, damaged))


class _Bounds(NamedTuple):
    """The bounds of the log: sequences from ``start`` up to ``end``."""

    start: int
    end: int


class _Found(NamedTuple):
    """The frames of a read, their events unless frames are wanted, and the damage in them."""

    frames: ReadResult
    events: list[StoredEvent]
    damaged: list[tuple[int, int]]


def _frames(
    number: int, reading: ReadResult, bounds: _Bounds, deleted: list[tuple[int, int]]
) -> Response:
    preface = {
        "next": reading.next_offset,
        "start": bounds.start,
        "end": bounds.end,
        "damaged": [
            {"partition": number, "start_offset": first, "end_offset": last}
            for first, last in _damaged(reading)
        ],
        "deleted": deleted,
    }
    return frames_response(preface, [(number, view.buffer) for view in reading.frames])


def _read(read: Callable[[], ReadResult], *, as_frames: bool) -> _Found:
    frames = read()
    found = _Found(frames, [], _damaged(frames))
    if not as_frames:
        _add_events(found)
    return found


async def _encoded(stored: list[StoredEvent], after: int) -> tuple[list[dict[str, Any]], int]:
    """Return events as JSON within the bound of an answer, and the sequence to go on at."""
    found: list[msgspec.Raw] = []
    bytes_left, time_slice = limits.READ_BYTES_MAX, TimeSlice()
    for each in stored:
        encoded = encode_json(_out(each))
        bytes_left -= len(encoded)
        if bytes_left < 0 and found:
            after = each.sequence
            break
        found.append(msgspec.Raw(encoded))
        if time_slice.is_over:
            await time_slice.next()
    return cast("list[dict[str, Any]]", found), after


def _damaged(reading: ReadResult) -> list[tuple[int, int]]:
    return [(each.start_offset, each.end_offset) for each in reading.damage]


def _add_events(found: _Found) -> None:
    for view in found.frames.frames:
        try:
            found.events.extend(decode_event_frame(view))
        except InvalidFrame:
            found.damaged.append((view.header.base_offset, view.header.end_offset))


def _out(stored: StoredEvent) -> dict[str, Any]:
    event = stored.event
    return {
        "sequence": stored.sequence,
        "epoch": stored.epoch,
        "time": format_time_us(stored.time_us),
        "event": _WORD.sub("_", type(event).__name__).lower(),
        **msgspec.to_builtins(msgspec.structs.asdict(event)),
    }
