"""One stream of lines that tells the current work of all nodes of a cluster.

For each line all nodes that are up are asked for one line of their own, once for all lookers of one
audience. It has what changed since the one before. A node that does not answer in time is told as a
problem, and its topics are left out of that line's sums.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec

from goq import limits
from goq.api.gateway.fanout import Fanout, copy_request, error_code
from goq.api.needs import principal_of
from goq.api.routes.live import LiveTopicsAsked, asked_lines, asked_topics, live_response
from goq.api.schemas.live import LiveNodeOut, LiveOut, LiveTopicOut
from goq.api.views.live.board import LiveBoard, LiveBoards, LiveSample
from goq.api.views.live.merge import merge_topics
from goq.api.views.live.selection import shortened
from goq.clock import SystemClock, TimeSlice
from goq.errors import GoqError, Unavailable
from goq.http.message import BytesLike, Request, Response

_ASKED: Final = f"{limits.LIVE_INTERVAL_S_MAX:g}s"
"""Nodes are asked at least so often, and remember what they told for longer."""


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

        def make_board() -> LiveBoard:
            sampler = ClusterSampler(self._fanout, request, topics)
            return LiveBoard(sampler.sample, first[0].node, SystemClock(), topics.selection)

        lines = self._boards.lines(
            (principal.id, principal.rules, request.headers.get("authorization"), topics),
            make_board,
            asked,
            is_new=topics.names is not None,
        )
        return live_response(lines)


class _NodeTopics:
    """The topics of a node as its last line told them, and where its next line goes on."""

    def __init__(self) -> None:
        self.cursor = ""
        self.topics: dict[str, LiveTopicOut] = {}

    def take(self, lines: Sequence[LiveOut]) -> set[str]:
        """Take the lines of a moment; return the topics that may have changed."""
        changed = set()
        if lines[0].is_whole:
            changed = set(self.topics)
            self.topics = {}
        for line in lines:
            for name in line.removed:
                self.topics.pop(name, None)
            changed.update(line.removed)
            for topic in line.topics:
                self.topics[topic.name] = topic
                changed.add(topic.name)
        self.cursor = lines[-1].cursor
        return changed


class ClusterSampler:
    """The samples of one audience: each node tells what changed, and only that is added up."""

    def __init__(self, fanout: Fanout, request: Request, topics: LiveTopicsAsked) -> None:
        self._fanout = fanout
        self._request = request
        self._asked = topics
        self._nodes: dict[str | None, _NodeTopics] = {}
        self._merged: dict[str, LiveTopicOut] = {}

    async def sample(self) -> LiveSample:
        """Return the nodes and topics of the cluster; a topic at rest is the same object."""
        urls = {None, *self._fanout.partition_leaders.leader_urls(None)}
        answers = dict(zip(urls, await asyncio.gather(*map(self._ask, urls)), strict=True))
        changed: set[str] = set()
        for url in self._nodes.keys() - {url for url, lines in answers.items() if lines}:
            changed.update(self._nodes.pop(url).topics)
        known: dict[str, LiveNodeOut] = {}
        for url, lines in answers.items():
            if lines:
                changed |= self._nodes.setdefault(url, _NodeTopics()).take(lines)
            for node in (node for line in lines for node in line.nodes):
                if node.started or node.node not in known:
                    known[node.node] = node
        for node in known.values():
            if not node.started:
                node.problem = f"{node.node} does not answer; goq cluster status says more"
        await self._merge(changed)
        return LiveSample([known[name] for name in sorted(known)], self._merged)

    async def _merge(self, changed: set[str]) -> None:
        merged, time_slice = dict(self._merged), TimeSlice()
        for name in changed:
            parts = [node.topics[name] for node in self._nodes.values() if name in node.topics]
            if parts:
                merged[name] = shortened(merge_topics(parts))
            else:
                merged.pop(name, None)
            if time_slice.is_over:
                await time_slice.next()
        if merged.keys() != self._merged.keys():
            merged = dict(sorted(merged.items()))
        self._merged = merged

    async def _ask(self, url: str | None) -> list[LiveOut]:
        """Return a node's lines of one moment, none if it does not answer."""
        cursor = self._nodes[url].cursor if url in self._nodes else ""
        request = copy_request(self._request, query=_query_of(self._asked, cursor))
        try:
            async with asyncio.timeout(limits.LIVE_NODE_TIMEOUT_S):
                return await _decoded(await self._fanout.ask(url, request))
        except (GoqError, TimeoutError, msgspec.DecodeError):
            if url is None:
                raise
            return []


def _query_of(topics: LiveTopicsAsked, cursor: str) -> str:
    """Return the query for one line of a node, of all that may be in a line of the cluster."""
    fields = {"limit": "1", "search": topics.selection.search, "interval": _ASKED, "after": cursor}
    if topics.names is not None:
        fields |= {"topics": ",".join(sorted(topics.names)), "groups": topics.groups}
    # a node of an earlier version refuses fields that it does not know
    return urlencode({name: text for name, text in fields.items() if text})


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
