"""The route that reads the audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from goq import limits
from goq.access.audit_record import AuditRecord, decode_record
from goq.api.codec.messages import json_response
from goq.api.codec.request import query_int, time_us
from goq.api.needs import READ_AUDIT
from goq.api.route import Parameter, Route
from goq.api.routing_policy import ToPartitionLeader
from goq.api.schemas.audit import AuditOut, AuditRecordOut
from goq.api.values import TIME, integer
from goq.broker.broker import Broker
from goq.http.message import Request, Response
from goq.model import AUDIT_TOPIC
from goq.storage.log.reader import LogReader
from goq.storage.log.time_range_reader import ReadBounds, TimeRange, read_time_range

_LIMIT = 100
_BOUNDS = ReadBounds(messages_max=10 * limits.AUDIT_READ_MAX)


def _leader(_request: Request, _values: Sequence[str]) -> tuple[str, int]:
    return AUDIT_TOPIC, 0


class _Page(NamedTuple):
    """The records found up to the offset ``next``."""

    records: list[AuditRecordOut]
    next: int


class AuditRoutes:
    """The route that reads the audit trail."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declaration."""
        return [
            Route(
                "GET",
                "/v1/audit",
                self.read,
                "Read the audit trail: what was managed, operated, administered and refused",
                answer=AuditOut,
                parameters=(
                    Parameter("since", "only records of this time or later", TIME),
                    Parameter("until", "only records before this time", TIME),
                    Parameter("principal", "only of the token with this id or name"),
                    Parameter("offset", "go on here: next of the answer before", integer()),
                    Parameter(
                        "limit", "at most so many", integer(1, limits.AUDIT_READ_MAX, _LIMIT)
                    ),
                ),
                errors=("too_many_requests",),
                routing=ToPartitionLeader(_leader, needs_session=True),  # it tells where the end is
                needs=READ_AUDIT,
            )
        ]

    async def read(self, request: Request) -> Response:
        """Read records; ``next`` is null at the end."""
        query, now_us = request.query, self._broker.clock.wall_us()
        limit = query_int(request, "limit", _LIMIT, minimum=1, maximum=limits.AUDIT_READ_MAX)
        offset = query_int(request, "offset", 0)
        times = TimeRange()
        if "since" in query:
            times = times._replace(from_us=time_us(query["since"], "since", now_us))
        if "until" in query:
            times = times._replace(to_us=time_us(query["until"], "until", now_us))
        topic = self._broker.topics.get(AUDIT_TOPIC)
        if topic is None:
            return json_response(AuditOut([], None))
        partition = topic.partitions[0]
        end = partition.end_offset
        work = partial(
            _read, partition.message_reader, times, offset, end, limit, query.get("principal")
        )
        page = await partition.in_thread(work)
        return json_response(AuditOut(page.records, page.next if page.next < end else None))


def _read(
    reader: LogReader, times: TimeRange, offset: int, end: int, limit: int, principal: str | None
) -> _Page:
    """Return the records of a part of the log. Damaged ones are left out: doctor tells of them."""
    reading = read_time_range(reader, times, offset, end, _BOUNDS)
    found: list[AuditRecordOut] = []
    for view in reading.frames:
        base, stop = view.header.base_offset, min(view.header.end_offset, end)
        for at in range(max(base, offset), stop):
            (value,) = view.values(at - base, at - base + 1)
            record = _decoded(value)
            if record is None or principal not in (None, record.principal, record.name):
                continue
            if len(found) == limit:
                return _Page(found, at)
            found.append(AuditRecordOut(offset=at, **_fields(record)))
    return _Page(found, max(offset, min(reading.next_offset, end)))


def _decoded(value: bytes | None) -> AuditRecord | None:
    try:
        return None if value is None else decode_record(value)
    except msgspec.MsgspecError:
        return None


def _fields(record: AuditRecord) -> dict[str, Any]:
    fields = asdict(record)
    return fields | {"result": str(record.result), "topics": list(record.topics)}
