"""A node shows and changes metadata by what was acknowledged, and tells all others of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from goq.api.gateway.gateway import Gateway
from goq.api.needs import Nothing
from goq.api.route import Route
from goq.api.routing_policy import (
    CustomRouting,
    LocalThenMerged,
    RoutingPolicy,
    ToAllLeaders,
    ToPartitionLeader,
)
from goq.errors import TopicNotFound, Unavailable
from goq.http.message import Request, Response

_SHOW = ToAllLeaders(lambda documents, _asked: documents[0])
_CHANGE = LocalThenMerged(lambda documents, _asked: documents[0])
_READ = ToPartitionLeader(lambda _request, _values: ("t", 0))


class _Starting:
    """A node that leads all partitions, and has old metadata until it has caught up."""

    def __init__(
        self,
        *,
        must_catch_up: bool = True,
        is_cut_off: bool = False,
        is_slow: bool = False,
        version: int = 1,
        leads: bool = True,
    ) -> None:
        self.must_catch_up = must_catch_up
        self.version = self.reconciled_version = version
        self.spread_version = 0
        self.is_cut_off = is_cut_off
        self._is_slow = is_slow
        self._leads = leads

    async def catch_up(self) -> None:
        if self.is_cut_off or self._is_slow:
            raise Unavailable("no other node answers")
        self.version = self.reconciled_version = 2

    async def spread(self) -> None:
        self.spread_version = self.version

    def leader_urls(self, topic: str) -> list[str | None]:
        if not self._leads:
            raise TopicNotFound(f"there is no topic {topic}")
        return [None]

    def handle(self, _request: Request) -> Response:
        answered = self.version
        if not self._leads:
            self.version += 1  # the change is applied here
        return Response(200, b'{"name": "t", "by": %d}' % answered)

    def answer(self, routing: RoutingPolicy, values: Sequence[str] = ("t",)) -> bytes:
        """Return the version by which a request of a route is answered.

        ``values`` are those that the path names.
        """
        leaders: Any = SimpleNamespace(
            leader_urls=self.leader_urls,
            leaders=lambda _topic: ["n1"],
            leader_url=lambda _topic, _number: None,
            has_session=lambda: True,
            patience_s=lambda: 0.0,
            next_change=lambda: asyncio.get_running_loop().create_future(),
        )
        unused: Any = SimpleNamespace()
        route = Route("GET", "/t", unused, "", needs=Nothing(is_open=True), routing=routing)
        router: Any = SimpleNamespace(
            on_stop=[],
            match=lambda _request: (route, values),
            handle=self.handle,
        )

        async def run() -> Response:
            gateway = Gateway(router, leaders, unused, unused, self, lambda _topic: {0: None})
            answer = gateway.handle(Request("GET", "/t", "", {}, b""))
            return await answer if isinstance(answer, Awaitable) else answer

        return bytes(asyncio.run(run()).body)


@pytest.mark.parametrize(
    "routing", [_SHOW, _CHANGE, CustomRouting.CHANGE_METADATA, CustomRouting.SHOW_METADATA]
)
def test_what_shows_or_changes_metadata_waits_for_changes_that_did_not_wait_for_the_node(
    routing: RoutingPolicy,
) -> None:
    assert b"2" in _Starting().answer(routing)
    assert b"1" in _Starting(must_catch_up=False).answer(routing)


def test_a_node_that_starts_cut_off_shows_what_it_knows() -> None:
    assert b"1" in _Starting(is_cut_off=True).answer(_SHOW)
    assert b"1" in _Starting(is_cut_off=True).answer(CustomRouting.SHOW_METADATA, ())


@pytest.mark.parametrize(
    "routing", [_CHANGE, CustomRouting.CHANGE_METADATA, CustomRouting.SHOW_METADATA]
)
def test_a_node_that_is_cut_off_says_nothing_that_a_change_may_have_made_untrue(
    routing: RoutingPolicy,
) -> None:
    assert b'"unavailable"' in _Starting(is_cut_off=True).answer(routing)


@pytest.mark.parametrize("routing", [_SHOW, CustomRouting.SHOW_METADATA])
def test_a_node_that_hears_the_others_and_cannot_catch_up_in_time_shows_nothing_old(
    routing: RoutingPolicy,
) -> None:
    assert b'"unavailable"' in _Starting(is_slow=True).answer(routing)


@pytest.mark.parametrize("routing", [_SHOW, _CHANGE])
def test_a_node_that_never_had_metadata_shows_nothing_instead_of_no_topics(
    routing: RoutingPolicy,
) -> None:
    assert b'"unavailable"' in _Starting(is_cut_off=True, version=0).answer(routing)


def test_a_change_of_what_is_no_topic_waits_for_all_nodes_too() -> None:
    node = _Starting(must_catch_up=False, leads=False)
    assert b"1" in node.answer(CustomRouting.CHANGE_METADATA, ("a schedule or a token",))
    assert node.spread_version == 2


def test_a_change_that_finds_itself_done_waits_for_all_nodes_too() -> None:
    """The one that made it may have had no answer."""
    node = _Starting(must_catch_up=False)
    assert b"1" in node.answer(CustomRouting.CHANGE_METADATA)
    assert node.spread_version == 1


def test_messages_are_read_without_that_wait() -> None:
    assert b"1" in _Starting().answer(_READ)
