"""The route that reads a partition's events as they were written."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import msgspec

from goq import limits
from goq.api.messages_out import frames_response, json_response
from goq.api.reading import query_int, wants_frames
from goq.api.route import Parameter, Route
from goq.api.spread import AtPartition, by_query
from goq.broker.broker import Broker
from goq.delivery.eventframes import StoredEvent, decode_event_frame
from goq.errors import InvalidFrame, InvalidInput
from goq.http.message import Request, Response
from goq.storage.reader import Reading
from goq.units import format_time_us

_JSON_EVENTS_MAX = 1_000
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


class EventsOut(msgspec.Struct):
    """Events by sequence; ``damaged`` are sequences that cannot be read."""

    events: list[dict[str, Any]]
    next: int
    damaged: list[tuple[int, int]]


class EventRoutes:
    """Reads what happened to messages, in the order in which it was decided."""

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
                    Parameter("partition", "which partition to read", "integer", required=True),
                    Parameter("offset", "the first sequence; default the first kept", "integer"),
                    Parameter("limit", "at most so many events", "integer"),
                ),
                errors=("topic_not_found", "partition_not_found"),
                gives_frames=True,
                spread=AtPartition(by_query),
            )
        ]

    async def read(self, request: Request, name: str) -> Response:
        """Read events of a partition from a sequence on; frames come whole."""
        topic = self._broker.topic(name)
        if "partition" not in request.query:
            raise InvalidInput("say which partition to read", field="partition")
        number = query_int(request, "partition", 0)
        partition = topic.partition(number)
        log = partition.events
        as_frames = wants_frames(request)
        most = limits.READ_MESSAGES_MAX if as_frames else _JSON_EVENTS_MAX
        limit = query_int(request, "limit", most, minimum=1, maximum=limits.READ_MESSAGES_MAX)
        start, end = log.start_offset, log.end_offset
        offset = max(start, query_int(request, "offset", start))
        reading = await partition.in_thread(
            partial(log.reader.read, offset, end, messages_max=limit)
        )
        damaged = [(each.start_offset, each.end_offset) for each in reading.damage]
        if as_frames:
            preface = {
                "next": reading.next_offset,
                "start": start,
                "end": end,
                "damaged": [
                    {"partition": number, "start_offset": first, "end_offset": last}
                    for first, last in damaged
                ],
            }
            return frames_response(preface, [(number, view.buffer) for view in reading.frames])
        events = [
            _out(stored)
            for stored in _stored(reading, damaged)
            if offset <= stored.sequence < offset + limit
        ]
        after = min(reading.next_offset, offset + limit)
        return json_response(EventsOut(events, after, damaged))


def _stored(reading: Reading, damaged: list[tuple[int, int]]) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    for view in reading.frames:
        try:
            found += decode_event_frame(view)
        except InvalidFrame:
            damaged.append((view.header.base_offset, view.header.end_offset))
    return found


def _out(stored: StoredEvent) -> dict[str, Any]:
    event = stored.event
    return {
        "sequence": stored.sequence,
        "epoch": stored.epoch,
        "time": format_time_us(stored.time_us),
        "event": _WORD.sub("_", type(event).__name__).lower(),
        **msgspec.to_builtins(msgspec.structs.asdict(event)),
    }
