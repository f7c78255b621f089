"""Route of the search for messages by key, dedup id or header."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from goq import limits
from goq.access.rule import Principal
from goq.api.codec.messages import json_response
from goq.api.codec.request import query_int, time_us
from goq.api.needs import READ, principal_of
from goq.api.route import Parameter, Route
from goq.api.routing_policy import Document, MergeContext, ToAllLeaders
from goq.api.schemas.trace import TraceOut
from goq.api.values import TIME, integer
from goq.api.views.merge_pages import merge_newest_first
from goq.broker.broker import Broker
from goq.broker.search.finder import SearchPage
from goq.broker.search.partition_search import TIME_US_MAX, TIME_US_MIN, MessageQuery
from goq.errors import InvalidInput, MessageNotFound
from goq.frame.hashes import dedup_hash
from goq.http.message import LOCAL, Request, Response
from goq.model import MessageId, check_dedup_text
from goq.units import format_time_us

_SELECTORS = ("key", "key_base64", "dedup_id", "header")
_LIMIT = 10
_COUNTS = ("searched", "partitions", "unreadable")


class TracesOut(msgspec.Struct):
    """Traces of the found messages, newest first, and the position to continue at."""

    traces: list[TraceOut]
    next: str | None


class PartOut(TracesOut):
    """A part of a search for another node, which merges it, with the amount searched."""

    searched: int
    partitions: int
    unreadable: int


def range_parameters(default_limit: int) -> tuple[Parameter, ...]:
    """Return the parameters that bound a search: times, the size of a page, and its begin."""
    return (
        Parameter("from_time", "only what was published at or after this time", TIME),
        Parameter("to_time", "only what was published before this time", TIME),
        Parameter(
            "limit",
            "at most so many messages",
            integer(1, limits.SEARCH_MESSAGES_MAX, default_limit),
        ),
        Parameter("cursor", "go on where another answer ended: its next"),
    )


def searched_times(query: Mapping[str, str], now_us: int) -> tuple[int, int]:
    """Return the append times to search, in microseconds; the second is exclusive."""
    from_us, to_us = (
        time_us(query[name], name, now_us) if name in query else default
        for name, default in (("from_time", TIME_US_MIN), ("to_time", TIME_US_MAX))
    )
    if to_us < from_us:
        raise InvalidInput("the end lies before the beginning", field="to_time")
    return from_us, to_us


Tracer = Callable[[MessageId, Principal], Awaitable[TraceOut]]
"""Returns the trace of a message for a principal; raises ``MessageNotFound`` if it was deleted."""


class SearchRoutes:
    """Search by key, dedup id or header."""

    def __init__(self, broker: Broker, tracer: Tracer) -> None:
        self._broker = broker
        self._tracer = tracer

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/trace",
                self.find,
                "Trace the messages with a key, a dedup id or a header",
                answer=TracesOut,
                parameters=(
                    Parameter("key", "messages with this key"),
                    Parameter("key_base64", "messages with this key, in base64"),
                    Parameter("dedup_id", "messages with this dedup id"),
                    Parameter("header", "messages with this header: name=value"),
                    *range_parameters(_LIMIT),
                ),
                errors=("topic_not_found", "message_not_found", "partition_offline"),
                waits=True,
                routing=ToAllLeaders(self._merged, needs_all=True),
                needs=READ,
            )
        ]

    async def find(self, request: Request, name: str) -> Response:
        """Find messages and return their traces, newest first."""
        wanted = self._wanted(request.query)
        limit = query_int(request, "limit", _LIMIT, minimum=1, maximum=limits.SEARCH_MESSAGES_MAX)
        topic = self._broker.topic(name)
        cursor = request.query.get("cursor")
        page = await self._broker.finder.find(topic, wanted, limit, cursor)
        is_part = LOCAL in request.headers
        if not page.found and page.next is None and cursor is None and not is_part:
            raise MessageNotFound(_nothing(request.query, name, wanted, page))
        traces, principal = [], principal_of(request)
        for partition, offset, _ in page.found:
            try:
                traces.append(await self._tracer(MessageId(name, partition, offset), principal))
            except MessageNotFound:
                continue  # deleted since it was found
        if is_part:
            counts = page.searched, page.partitions, page.unreadable
            return json_response(PartOut(traces, page.next, *counts))
        return json_response(TracesOut(traces, page.next))

    def _merged(self, documents: Sequence[Document], asked: MergeContext) -> Document:
        merged = merge_newest_first(documents, int(asked.query.get("limit", _LIMIT)))
        if not merged["traces"] and merged["next"] is None and "cursor" not in asked.query:
            counts = [sum(d[name] for d in documents) for name in _COUNTS]
            page, wanted = SearchPage([], None, *counts), self._wanted(asked.query)
            raise MessageNotFound(_nothing(asked.query, asked.path[0], wanted, page))
        return merged

    def _wanted(self, query: Mapping[str, str]) -> MessageQuery:
        given = [name for name in _SELECTORS if name in query]
        if len(given) != 1:
            raise InvalidInput(
                f"say what to look for by one of {', '.join(_SELECTORS)};"
                f" here are {' and '.join(given) or 'none'}",
                field=given[1] if given else "key",
            )
        times = searched_times(query, self._broker.clock.wall_us())
        value = query[given[0]]
        match given[0]:
            case "dedup_id":
                hashed = dedup_hash(check_dedup_text(value, field="dedup_id"))
                return MessageQuery(dedup_id=hashed, from_us=times[0], to_us=times[1])
            case "header":
                return MessageQuery(header=_header(value), from_us=times[0], to_us=times[1])
        key = value.encode() if given[0] == "key" else _from_base64(value)
        return MessageQuery(key=key, from_us=times[0], to_us=times[1])


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidInput(f"{text[:100]!r} is not a header; one reads name=value", field="header")
    return name, value.encode()


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(
            f"not base64: {error}; write + as %2B in a URL", field="key_base64"
        ) from None


def _nothing(query: Mapping[str, str], topic: str, wanted: MessageQuery, page: SearchPage) -> str:
    """Return what was looked for and where, for an answer without a message."""
    what = "no message"
    if wanted.header is not None:
        what += f" with the header {query['header'][:100]!r}"
    elif wanted.dedup_id is not None:
        what += f" with the dedup id {query['dedup_id'][:100]!r}"
    else:
        assert wanted.key is not None
        what += f" with the key {wanted.key[:100].decode(errors='backslashreplace')!r}"
    what += f" in topic {topic}: searched {page.searched} messages"
    what += f" in {page.partitions} partitions" if page.partitions != 1 else " in 1 partition"
    if wanted.from_us != TIME_US_MIN:
        what += f" from {format_time_us(wanted.from_us)}"
    if wanted.to_us != TIME_US_MAX:
        what += f" up to {format_time_us(wanted.to_us)}"
    if page.unreadable:
        what += f"; {page.unreadable} places could not be read, goq doctor says more"
    if wanted.key is not None:
        what += "; keys are bytes and compared as they are: A differs from a"
    elif wanted.header is not None:
        what += "; name and value are compared as they are: A differs from a"
    return what
