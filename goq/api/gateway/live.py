"""One stream of lines that tells the current work of all nodes of a cluster.

For each line all nodes that are up are asked for one line of their own, once for all lookers of one
audience. A node that does not answer
in time is told as a problem, and its topics are left out of that line's sums.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from urllib.parse import urlencode

import msgspec

from goq import limits
from goq.api.gateway.fanout import Fanout, copy_request, error_code
from goq.api.needs import principal_of
from goq.api.routes.live import LiveTopicsAsked, asked_lines, asked_topics, live_response
from goq.api.schemas.live import LiveNodeOut, LiveOut
from goq.api.views.live.board import LiveBoard, LiveBoards, LiveSample
from goq.api.views.live.merge import merge_live
from goq.api.views.live.selection import shortened
from goq.clock import SystemClock
from goq.errors import GoqError, Unavailable
from goq.http.message import BytesLike, Request, Response


class LiveGateway:
    """Answers ``GET /v1/live`` for the whole cluster."""

    def __init__(self, fanout: Fanout) -> None:
        self._fanout = fanout
        self._boards = LiveBoards()

    async def answer(self, request: Request, _values: Sequence[str]) -> Response:
        """Return the lines of all nodes, as one."""
        topics, asked = asked_topics(request), asked_lines(request)
        one = copy_request(request, query="limit=1&top=1")
        first = await _decoded(await self._fanout.ask(None, one))
        principal = principal_of(request)
        sample = partial(self._sample, copy_request(request, query=_query_of(topics)))
        lines = self._boards.lines(
            (principal.id, principal.rules, request.headers.get("authorization"), topics),
            lambda: LiveBoard(sample, first[0].node, SystemClock(), topics.selection),
            asked,
            is_new=topics.names is not None,
        )
        return live_response(lines)

    async def _sample(self, request: Request) -> LiveSample:
        urls = self._fanout.partition_leaders.leader_urls(None)
        answers = await asyncio.gather(*(self._ask(url, request) for url in {None, *urls}))
        known: dict[str, LiveNodeOut] = {}
        samples = []
        for lines in answers:
            topics = {topic.name: topic for line in lines for topic in line.topics}
            samples.append(LiveSample([], topics))
            for node in (node for line in lines for node in line.nodes):
                if node.started or node.node not in known:
                    known[node.node] = node
        for node in known.values():
            if not node.started:
                node.problem = f"{node.node} does not answer; goq cluster status says more"
        merged = await merge_live(samples, [known[name] for name in sorted(known)])
        return LiveSample(merged.nodes, {n: shortened(t) for n, t in merged.topics.items()})

    async def _ask(self, url: str | None, request: Request) -> list[LiveOut]:
        """Return a node's lines of one moment, none if it does not answer."""
        try:
            async with asyncio.timeout(limits.LIVE_NODE_TIMEOUT_S):
                return await _decoded(await self._fanout.ask(url, request))
        except (GoqError, TimeoutError, msgspec.DecodeError):
            if url is None:
                raise
            return []


def _query_of(topics: LiveTopicsAsked) -> str:
    """Return the query for one line of a node, of all that may be in a line of the cluster."""
    fields = {"limit": "1", "search": topics.selection.search}
    if topics.names is not None:
        fields |= {"topics": ",".join(sorted(topics.names)), "groups": topics.groups}
    return urlencode(fields)


async def _decoded(answer: Response) -> list[LiveOut]:
    """Return the lines of a node's answer; raises ``GoqError``."""
    body = answer.body
    if answer.status != 200 or not isinstance(body, AsyncIterator):
        raise Unavailable(f"a node does not say what it does now ({error_code(answer)})")
    try:
        text = bytearray()
        async for item in body:
            text += item if isinstance(item, BytesLike) else b"".join(item)
    finally:
        await body.aclose()  # type: ignore[attr-defined]
    return [msgspec.json.decode(line, type=LiveOut) for line in text.splitlines() if line]
