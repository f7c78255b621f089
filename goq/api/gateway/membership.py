"""The members of a group whose partitions several nodes lead.

Each leader says by itself who may take from the partitions that it leads, as it alone knows of all
their leases: so no partition is ever two consumers' at once, whoever leads what. A member is one
at every leader, and what it has is what they say together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from goq import limits
from goq.api.codec.messages import json_response
from goq.api.gateway.fanout import Fanout, copy_request, decode_document, incomplete_answer
from goq.api.views.merge import merge_assignment
from goq.errors import GoqError, NotLeader, Unavailable
from goq.http.message import Request, Response


async def heartbeat(fanout: Fanout, request: Request, values: Sequence[str]) -> Response:
    """Tell all leaders that a member is alive; one that does not know it yet has it join.

    Raises what kept all of them from answering.
    """
    topic, group, consumer = values
    answers = await _ask_each(fanout, topic, request)
    if all(answer.status >= 300 for answer in answers.values()):
        return next(iter(answers.values()))
    joining = copy_request(
        request,
        path=f"/v1/topics/{topic}/groups/{group}/members",
        body=msgspec.json.encode({"consumer": consumer}),
        headers={"content-type": "application/json"},
    )
    for url, answer in answers.items():
        if answer.status == 404:
            answers[url] = await fanout.ask(url, joining)
    documents = [decode_document(answer) for answer in answers.values() if answer.status < 300]
    return json_response(merge_assignment(documents))


async def leave(fanout: Fanout, request: Request, values: Sequence[str]) -> Response:
    """Let a member go at all leaders.

    Raises ``PartitionOffline`` where one cannot be asked; to ask again does no harm.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + limits.RELAY_PATIENCE_S
    left: Response | None = None
    while True:
        try:
            answers = await _ask_each(fanout, values[0], request, needs_all=True)
        except Unavailable as error:
            if loop.time() >= until:
                raise incomplete_answer(values[0], error) from error
            await asyncio.sleep(limits.RELAY_PAUSE_S)
            continue
        for answer in answers.values():
            left = answer if left is None or answer.status < 300 else left
        assert left is not None
        return left


async def _ask_each(
    fanout: Fanout, topic: str, request: Request, *, needs_all: bool = False
) -> dict[str | None, Response]:
    """Return the answers of the leaders that give one; raise where none does, or not all.

    A node that leads nothing has no say, though it may remember members of before.
    """
    leaders = fanout.partition_leaders
    led = [number for number, name in enumerate(leaders.leaders(topic)) if name is not None]
    urls = list({leaders.leader_url(topic, number): None for number in led})
    if not urls:
        raise NotLeader(f"nobody leads a partition of {topic} now")
    asked = (fanout.ask(url, request) for url in urls)
    results = await asyncio.gather(*asked, return_exceptions=True)
    found = {
        url: result
        for url, result in zip(urls, results, strict=True)
        if isinstance(result, Response)
    }
    errors = [result for result in results if isinstance(result, BaseException)]
    other = [error for error in errors if not isinstance(error, GoqError)]
    if errors and (other or needs_all or not found):
        raise (other or errors)[0]
    return found
