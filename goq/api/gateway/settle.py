"""Settling receipts of several nodes by one request; each leader gets its own receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from goq import limits
from goq.api.codec.messages import json_response
from goq.api.codec.request import KEYS_BYTES_MAX, json_body
from goq.api.gateway.fanout import Fanout, copy_request, decode_document, error_code
from goq.api.routing_policy import Document
from goq.errors import (
    GoqError,
    InvalidInput,
    NotLeader,
    PartitionOffline,
    TopicNotFound,
    Unavailable,
)
from goq.http.message import Request, Response
from goq.model import Receipt

_MISTAKES = frozenset({400, 403, 404, 409, 413, 415})
_ByPartition = dict[int, list[str]]


async def settle(
    fanout: Fanout, request: Request, topic: str, catch_up: Callable[[], Awaitable[None]]
) -> Response:
    """Return the number of settled messages, and the receipts that failed with their error codes.

    Receipts of a partition whose leader is missing or does not answer fail with that code; the
    others are settled. ``timed_out`` receipts may be settled, all other failed ones are not.

    ``catch_up`` waits for the newest metadata. Raises its error, with nothing settled, if a receipt
    is of a partition that this node does not know.
    """
    leaders = fanout.partition_leaders.leaders
    try:
        fields, receipts = _fields_of(request)
        partitions = len(leaders(topic))
    except (TypeError, GoqError):
        return await fanout.answer_here(request)  # which says what is wrong with it
    if max(receipts) >= partitions:
        await catch_up()
        partitions = len(leaders(topic))
    left = _of_known(receipts, partitions)
    loop = asyncio.get_running_loop()
    until = loop.time() + fanout.partition_leaders.patience_s()
    settled, failed = 0, list[Document]()
    while left:
        groups = _by_leader(fanout, topic, left)
        answers = await asyncio.gather(
            *(_ask(fanout, url, request, fields, some) for url, some in groups)
        )
        refusals = [answer for answer in answers if isinstance(answer, Response)]
        if refusals and len(refusals) == len(answers) and not settled and not failed:
            return refusals[0]
        for (_, some), answer in zip(groups, answers, strict=True):
            if answer is None:
                continue
            left = {number: texts for number, texts in left.items() if number not in some}
            if isinstance(answer, Response):
                failed += _failed([t for texts in some.values() for t in texts], error_code(answer))
                continue
            settled += answer["settled"]
            for each in answer["failed"]:
                if each["code"] == NotLeader.code:
                    number = Receipt.parse(each["receipt"]).partition
                    left.setdefault(number, []).append(each["receipt"])
                else:
                    failed.append(each)
        if left and loop.time() >= until:
            failed += _failed([t for some in left.values() for t in some], PartitionOffline.code)
            break
        if left:
            await asyncio.sleep(limits.FORWARD_RETRY_PAUSE_S)
    places = {text: place for place, text in enumerate(fields["receipts"])}
    failed.sort(key=lambda each: places.get(each["receipt"], 0))
    return json_response({"settled": settled, "failed": failed})


def _fields_of(request: Request) -> tuple[dict[str, Any], _ByPartition]:
    """Return a request's body, and its receipts by partition."""
    fields: dict[str, Any] = json_body(request, dict, keys_bytes_max=KEYS_BYTES_MAX)
    texts = fields.get("receipts")
    if not isinstance(texts, list) or not 0 < len(texts) <= limits.RECEIPTS_PER_REQUEST_MAX:
        raise InvalidInput("say which receipts", field="receipts")
    found: _ByPartition = {}
    for text in texts:
        found.setdefault(Receipt.parse(text).partition, []).append(text)
    return fields, found


def _of_known(receipts: _ByPartition, partitions: int) -> _ByPartition:
    """Return receipts by partition; the leader of the first has those of partitions that there are
    not, which are lost anywhere.
    """
    found: _ByPartition = {}
    for number, texts in receipts.items():
        found.setdefault(number if number < partitions else 0, []).extend(texts)
    return found


def _by_leader(
    fanout: Fanout, topic: str, receipts: _ByPartition
) -> list[tuple[str | None, _ByPartition]]:
    """Return receipts by the URL of their leader, without those that have no leader."""
    found: dict[str | None, _ByPartition] = {}
    for number, texts in receipts.items():
        try:
            url = fanout.partition_leaders.leader_url(topic, number)
        except NotLeader:
            continue
        found.setdefault(url, {})[number] = texts
    return list(found.items())


async def _ask(
    fanout: Fanout,
    url: str | None,
    request: Request,
    fields: Mapping[str, Any],
    receipts: _ByPartition,
) -> Document | Response | None:
    """Have a leader settle; return ``None`` if it leads no more, or a refusal as it is.

    The metadata name the topic. So where they name this node as a leader, and it has no such topic,
    it starts, and has not opened it yet. Another node has looked again before it says so.
    """
    texts = [text for some in receipts.values() for text in some]
    body = msgspec.json.encode({**fields, "receipts": texts})
    try:
        answer = await fanout.ask(url, copy_request(request, body=body), is_small=True)
    except NotLeader:
        return None
    except Unavailable as error:
        return {"settled": 0, "failed": _failed(texts, error.code)}
    if answer.status == NotLeader.http_status:
        return None
    if url is None and answer.status == 404 and error_code(answer) == TopicNotFound.code:
        return None
    if answer.status in _MISTAKES:
        return answer
    if answer.status >= 300:
        return {"settled": 0, "failed": _failed(texts, error_code(answer))}
    return decode_document(answer)


def _failed(receipts: Sequence[str], code: str) -> list[Document]:
    return [{"receipt": text, "code": code} for text in receipts]
