"""Requests that take a number of messages from a topic, from one partition after another.

Each partition's leader is asked for what is left to take. So the answer says where to go on by one
place in the order of partitions and offsets, as a node on its own does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from goq import limits
from goq.api.codec.messages import json_response
from goq.api.codec.request import json_body
from goq.api.gateway.fanout import Fanout, copy_request, decode_document
from goq.api.routing_policy import Document, Sequential
from goq.errors import GoqError, InvalidInput
from goq.http.message import Request, Response
from goq.model import MessageId

_LAST_OFFSET = 10**18


async def ask_in_sequence(
    fanout: Fanout, request: Request, routing: Sequential, values: Sequence[str]
) -> Response:
    """Return what all took together. What failed after something was taken is left for the next.

    Raises ``InvalidInput``, ``PartitionOffline`` and ``Unavailable``.
    """
    topic = routing.topic_of(values)
    assert topic is not None
    fields = _fields_of(request)
    one, left = (
        _number(fields, "partition", None),
        _number(fields, "max_messages", routing.max_default),
    )
    if one is not None:
        return await fanout.ask_partition_leader(topic, one, request)
    assert left is not None
    if not 1 <= left <= limits.REDRIVE_MESSAGES_MAX:
        return await fanout.answer_here(request)  # which says what is wrong with it
    total: Document | None = None
    for number in range(_first(fields.get("after")), len(fanout.partition_leaders.leaders(topic))):
        try:
            answer = await fanout.ask_partition_leader(
                topic, number, _for_partition(request, fields, number, left)
            )
        except GoqError:
            if total is None:
                raise
            return json_response(_going_on(total, topic, number))
        if answer.status >= 300:
            return answer if total is None else json_response(_going_on(total, topic, number))
        found = decode_document(answer)
        if total is None:
            total = found
        else:
            sums = {name: total[name] + found[name] for name in routing.sums}
            total = {**total, **sums, "next": found["next"]}
        left -= found[routing.counts]
        if found["next"] is not None:
            return json_response(total)
        if left <= 0:
            return json_response(_going_on(total, topic, number + 1))
    return await fanout.answer_here(request) if total is None else json_response(total)


def _going_on(total: Document, topic: str, number: int) -> Document:
    """Return the answer of one that goes on with a partition, from its beginning."""
    return {**total, "next": str(MessageId(topic, number - 1, _LAST_OFFSET)) if number else None}


def _fields_of(request: Request) -> dict[str, Any]:
    """Return what a request asks, wherever it says it."""
    if request.method == "DELETE":
        return dict(request.query)
    fields: dict[str, Any] = json_body(request, dict)
    return fields


def _for_partition(request: Request, fields: dict[str, Any], number: int, left: int) -> Request:
    asked = {**fields, "partition": number, "max_messages": left}
    if request.method == "DELETE":
        return copy_request(request, query=urlencode(asked))
    return copy_request(request, body=msgspec.json.encode(asked))


def _number(fields: dict[str, Any], name: str, default: int | None) -> int | None:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{str(value)[:50]!r} is not a number", field=name)
    return value


def _first(after: object) -> int:
    """Return the partition to begin with."""
    if after is None:
        return 0
    try:
        return MessageId.parse(str(after)).partition
    except InvalidInput as error:
        error.field = "after"
        raise
