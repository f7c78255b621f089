"""Requests that take messages from one partition after another, such as redrive and purge.

Each partition's leader is asked for the rest. So the answer continues at one position in the order
of partitions and offsets, as on a standalone node.
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
    """Return the sum of all answers. A failure after the first message ends the answer early.

    Raises ``InvalidInput``, ``PartitionOffline`` and ``Unavailable``.
    """
    topic = routing.topic_of(request, values)
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
            return json_response(_continue_at(total, topic, number))
        if answer.status >= 300:
            return answer if total is None else json_response(_continue_at(total, topic, number))
        found = decode_document(answer)
        if total is None:
            total = found
        else:
            sums = {name: total.get(name, 0) + found.get(name, 0) for name in routing.sums}
            total = {**total, **sums, "next": found["next"]}
        left -= found[routing.counts]
        if found["next"] is not None:
            return json_response(total)
        if left <= 0:
            return json_response(_continue_at(total, topic, number + 1))
    return await fanout.answer_here(request) if total is None else json_response(total)


def _continue_at(total: Document, topic: str, number: int) -> Document:
    """Return the answer with ``next`` at the beginning of partition ``number``."""
    return {**total, "next": str(MessageId(topic, number - 1, _LAST_OFFSET)) if number else None}


def _fields_of(request: Request) -> dict[str, Any]:
    """Return the fields of a request, from its query or its body."""
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
    """Return the first partition to ask."""
    if after is None:
        return 0
    try:
        return MessageId.parse(str(after)).partition
    except InvalidInput as error:
        error.field = "after"
        raise
