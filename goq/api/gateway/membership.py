"""Members of a group whose partitions several nodes lead.

Each leader alone assigns the partitions that it leads, because it alone knows all their leases. So
no partition belongs to two consumers at once, whatever node leads what. A member joins at every
leader; its assignment is the union of theirs.
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
    """Send a member's heartbeat to all leaders; a leader that does not know it joins it.

    Raises an error only if no leader answered.
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
    """Remove a member at all leaders.

    Raises ``PartitionOffline`` if one does not answer; a repetition does no harm.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + fanout.partition_leaders.patience_s()
    left: Response | None = None
    while True:
        try:
            answers = await _ask_each(fanout, values[0], request, needs_all=True)
        except Unavailable as error:
            if loop.time() >= until:
                raise incomplete_answer(values[0], error) from error
            await asyncio.sleep(limits.FORWARD_RETRY_PAUSE_S)
            continue
        for answer in answers.values():
            left = answer if left is None or answer.status < 300 else left
        assert left is not None
        return left


async def _ask_each(
    fanout: Fanout, topic: str, request: Request, *, needs_all: bool = False
) -> dict[str | None, Response]:
    """Return the answers of the leaders; raise if none answers, or not all that are needed.

    A node that leads nothing is not asked, though it may still know members.
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
