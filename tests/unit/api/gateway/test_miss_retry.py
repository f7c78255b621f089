"""A miss is answered once it is known that no change is missing."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from goq.api.codec.problem import problem_response
from goq.api.gateway.miss_retry import with_miss_retry
from goq.errors import (
    GoqError,
    GroupNotFound,
    LeaseLost,
    MemberNotFound,
    NotFound,
    ScheduleExists,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from goq.http.message import Request, Response
from tests.support.cluster.replication.loop import run_simulated

_FOUND = Response(200, b"{}")
_MISS = TopicNotFound("no topic")


class _Node:
    """A node that lacks changes, and how often it was asked."""

    def __init__(self, *answers: Response | GoqError, lacks: int = 0) -> None:
        self.version = 1
        self.reconciled_version = 1
        self.must_catch_up = self.is_cut_off = False
        self.error: GoqError | None = None
        self.asked = self.waited = 0
        self._answers = [
            answer if isinstance(answer, Response) else problem_response(answer)
            for answer in answers
        ]
        self._lacks = lacks

    def handle(self, _request: Request) -> Response:
        self.asked += 1
        return self._answers.pop(0)

    async def handle_later(self, request: Request) -> Response:
        return self.handle(request)

    async def catch_up(self) -> None:
        self.waited += 1
        if self.error is not None:
            raise self.error
        self.reconciled_version += self._lacks

    async def spread(self) -> None:
        raise AssertionError("nothing was changed")


@pytest.mark.parametrize(
    "miss",
    [
        _MISS,
        GroupNotFound("no group"),
        NotFound("no schedule"),
        ScheduleExists("another one"),
        TopicExists("it exists"),
    ],
)
@pytest.mark.parametrize("later", [True, False])
def test_a_miss_is_looked_at_again_when_a_change_was_missing(miss: GoqError, later: bool) -> None:
    node = _Node(miss, _FOUND, lacks=1)
    assert _answer(node, later=later).status == 200
    assert node.asked == 2


def test_a_miss_that_holds_is_answered_without_a_second_look() -> None:
    node = _Node(_MISS)
    assert _answer(node).status == 404
    assert (node.asked, node.waited) == (1, 1)


def test_a_miss_after_a_change_is_answered() -> None:
    assert _answer(_Node(_MISS, _MISS, lacks=1)).status == 404


def test_a_node_that_cannot_know_does_not_say_that_something_is_missing() -> None:
    node = _Node(_MISS)
    node.error = Unavailable("cut off")
    assert _answer(node).status == 503


@pytest.mark.parametrize("other", [_FOUND, LeaseLost("over"), MemberNotFound("who")])
def test_other_answers_wait_for_nothing(other: Response | GoqError) -> None:
    node = _Node(other)
    _answer(node)
    assert node.waited == 0


def _answer(node: _Node, *, later: bool = False) -> Response:
    async def run() -> Response:
        handler = node.handle_later if later else node.handle
        answer = with_miss_retry(handler, node)(Request("GET", "/", "", {}, b""))
        return await answer if isinstance(answer, Awaitable) else answer

    return run_simulated(run())
