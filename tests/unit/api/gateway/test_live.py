"""The work of a cluster, of what its nodes tell since they were asked last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec

from goq.api.gateway.live import ClusterSampler
from goq.api.routes.live import LiveTopicsAsked
from goq.api.schemas.live import LiveNodeOut, LiveTopicOut
from goq.api.views.live.board import LiveAsked, LiveBoard, LiveBoards, LiveSample
from goq.api.views.live.selection import LiveSelection
from goq.clock import ManualClock
from goq.errors import Unavailable
from goq.http.message import LiveStream, Request, Response

ALL = LiveTopicsAsked(None, "", LiveSelection())


def topic(name: str, published: int = 0) -> LiveTopicOut:
    return LiveTopicOut(name, 1, 0, published, 0, published, 0, 0, 0, 0, 0, 0, 0, [])


class Node:
    """A node whose lines are read as a cluster's node reads them."""

    def __init__(self, name: str, *topics: LiveTopicOut) -> None:
        self.name = name
        self.topics = {each.name: each for each in topics}
        self.boards = LiveBoards()
        self.told: list[list[str]] = []
        self.asked: list[set[str]] = []
        self.is_away = False

    async def _sample(self) -> LiveSample:
        return LiveSample([LiveNodeOut(self.name, started="then")], dict(self.topics))

    async def answer(self, request: Request) -> Response:
        if self.is_away:
            raise Unavailable("away")
        fields = parse_qs(request.query_string)
        self.asked.append(set(fields))
        after = fields.get("after", [""])[0]
        lines = self.boards.lines(
            "all",
            lambda: LiveBoard(self._sample, self.name, ManualClock()),
            LiveAsked(60.0, 1, after),
            is_new=True,
        )
        parts = [part async for part in lines]
        told = [each["name"] for part in parts for each in msgspec.json.decode(part)["topics"]]
        self.told.append(told)

        async def again() -> Any:
            for part in parts:
                yield part

        return Response(200, LiveStream(again(), b"\n"))


class Cluster:
    """Two nodes, as a fan-out asks them: this one, and another by its URL."""

    def __init__(self, here: Node, other: Node) -> None:
        self._nodes = {None: here, "http://other": other}
        self.partition_leaders = self

    def leader_urls(self, _topic: str | None) -> Sequence[str | None]:
        return list(self._nodes)

    async def ask(self, url: str | None, request: Request) -> Response:
        return await self._nodes[url].answer(request)


def published(sample: LiveSample) -> dict[str, int]:
    return {name: topic.published_messages for name, topic in sample.topics.items()}


def test_nodes_tell_what_changed_and_only_that_is_added_up() -> None:
    here = Node("n1", topic("a", 1), topic("c"))
    other = Node("n2", topic("a", 2), topic("b", 5))
    sampler = ClusterSampler(Cluster(here, other), Request("GET", "/v1/live"), ALL)

    async def run() -> None:
        first = await sampler.sample()
        assert {n: t.published_messages for n, t in first.topics.items()} == {
            "a": 3,
            "b": 5,
            "c": 0,
        }
        assert [node.node for node in first.nodes] == ["n1", "n2"]
        assert other.asked == [{"limit", "interval"}]  # nothing that an earlier version refuses
        here.topics["a"] = topic("a", 10)
        del other.topics["b"]
        second = await sampler.sample()
        assert published(second) == {"a": 12, "c": 0}
        assert second.topics["c"] is first.topics["c"]
        assert (here.told[1], other.told[1]) == (["a"], [])

        other.is_away = True
        third = await sampler.sample()
        assert third.topics["a"].published_messages == 10
        other.is_away = False
        other.boards = LiveBoards()  # it was restarted
        other.topics = {"a": topic("a", 1)}
        fourth = await sampler.sample()
        assert fourth.topics["a"].published_messages == 11
        assert list(fourth.topics) == ["a", "c"]

    asyncio.run(run())
