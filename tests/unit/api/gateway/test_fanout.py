"""Answers of all leaders are for all partitions; a write that may be partly done is in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from goq import limits
from goq.api.gateway.coverage import COVERAGE_OF, LocalAnswers, covered_by
from goq.api.gateway.fanout import Fanout
from goq.api.routing_policy import DONE, decode_partitions, encode_partitions
from goq.cluster.forwarding.http_proxy import HttpProxy
from goq.errors import (
    GoqError,
    NotLeader,
    PartitionOffline,
    TimedOut,
    TooManyRequests,
    Unavailable,
)
from goq.http.client import errors as transport_errors
from goq.http.message import Request, Response
from tests.support.cluster.replication.loop import run_simulated

_DONE = Response(200, b"{}")
_MOVED = Response(421, b'{"code":"not_leader"}')
_FULL = Response(507, b'{"code":"storage_full"}')
_UNKNOWN = Response(504, b'{"code":"timed_out"}')
_MISTAKE = Response(400, b'{"code":"invalid_input"}')


class _Nodes(Fanout):
    """Two leaders, and what each answers to one request after another."""

    def __init__(self, first: Sequence[Any], second: Sequence[Any]) -> None:
        self.partition_leaders = self
        self.leading: list[str | None] = ["a", "b", "a"]
        self.done: list[frozenset[int]] = []
        """The partitions that each request says are done."""
        self.is_cut_off = False
        self._answers = {"http://a": list(first), "http://b": list(second)}

    def leader_urls(self, _topic: str | None) -> list[str | None]:
        return list(self._answers)

    def leader_url(self, _topic: str, _number: int) -> str | None:
        return "http://a"

    def leaders(self, _topic: str) -> list[str | None]:
        return self.leading

    def patience_s(self) -> float:
        return 0.0 if self.is_cut_off else limits.FORWARD_LEADER_WAIT_S

    def next_change(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def ask(self, url: str | None, request: Request) -> Response:
        assert url is not None
        self.done.append(decode_partitions(request.headers.get(DONE, "")))
        answers = self._answers[url]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Response)
        return answer


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORWARD_LEADER_WAIT_S", 0.1)


@pytest.mark.parametrize("refusal", [_MOVED, _FULL, _MISTAKE, NotLeader("x"), Unavailable("x")])
def test_a_write_that_one_leader_refuses_after_another_did_it_is_in_doubt(refusal: object) -> None:
    for nodes in (_Nodes([_DONE], [refusal]), _Nodes([refusal], [_DONE])):
        with pytest.raises(TimedOut):
            _write(nodes)


def test_a_refusal_after_an_unknown_outcome_is_in_doubt() -> None:
    with pytest.raises(TimedOut):
        _write(_Nodes([_UNKNOWN, _MOVED], [_MOVED]))
    with pytest.raises(TimedOut):
        _write(_Nodes([TimedOut("broken")], [NotLeader("x")]))


def test_a_write_that_all_leaders_refuse_is_refused() -> None:
    assert _write(_Nodes([_FULL], [_FULL])) == [507]
    assert _write(_Nodes([_MOVED], [_MOVED])) == [421]
    with pytest.raises(PartitionOffline):
        _write(_Nodes([NotLeader("x")], [NotLeader("x")]))


def test_a_write_succeeds_when_the_leaders_that_refused_do_it_later() -> None:
    assert {*_write(_Nodes([_DONE], [_MOVED, NotLeader("x"), _DONE]))} == {200}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_node_that_is_cut_off_answers_without_a_wait_for_another_leader(method: str) -> None:
    nodes = _Nodes([NotLeader("x")], [NotLeader("x")])
    nodes.is_cut_off = True
    with pytest.raises(PartitionOffline):
        _ask(nodes, method)
    with pytest.raises(PartitionOffline):
        run_simulated(nodes.ask_partition_leader("t", 0, Request(method, "/", "", {}, b"")))
    assert len(nodes.done) == 3


def test_a_read_is_never_in_doubt() -> None:
    with pytest.raises(PartitionOffline):
        _ask(_Nodes([_DONE], [Unavailable("broken")]), "GET")


def test_a_read_is_asked_again_until_the_answers_are_for_each_partition_once() -> None:
    for first, second in (
        ([{0, 2}], [set(), {1}]),  # 1 has left a and is not open at b
        ([{0}, {0, 2}], [{1}]),
        ([{0, 1, 2}, {0, 2}], [{1}]),  # 1 is at both
    ):
        nodes = _Nodes([*map(_part, first)], [*map(_part, second)])
        answers = _answers(nodes, "GET")
        assert [*map(covered_by, answers)] == [{0, 2}, {1}]


@pytest.mark.parametrize(("first", "second"), [({0, 2}, set()), ({0, 1, 2}, {1})])
def test_a_read_of_a_partition_that_no_leader_serves_or_two_do_is_refused(
    first: set[int], second: set[int]
) -> None:
    with pytest.raises(PartitionOffline, match="partition 1 of t"):
        _ask(_Nodes([_part(first)], [_part(second)]), "GET")


def test_what_shows_a_partition_as_offline_is_answered_without_it() -> None:
    nodes = _Nodes([_part({0, 2})], [_part(set())])
    request = Request("GET", "/", "", {}, b"")
    answers = run_simulated(nodes.ask_all_leaders("t", request, may_lack=True))
    assert [*map(covered_by, answers)] == [{0, 2}]


def test_a_read_leaves_out_a_partition_without_a_leader() -> None:
    nodes = _Nodes([_part({0, 2})], [_part(set())])
    nodes.leading[1] = None
    assert _ask(nodes, "GET") == [200]


def test_a_read_leaves_out_what_a_node_tells_that_others_have_replaced() -> None:
    nodes = _Nodes([_part(set(), b"stale")], [_part({0, 1, 2}, b"now")])
    assert [each.body for each in _answers(nodes, "GET")] == [b"now"]
    nodes = _Nodes([_part(set(), b"here")], [_part(set(), b"there")])
    nodes.leading[:] = [None] * 3
    assert [each.body for each in _answers(nodes, "GET")] == [b"here", b"there"]


def test_a_write_is_repeated_for_the_partitions_in_which_it_is_not_done() -> None:
    nodes = _Nodes(
        [_part({0}, b"first"), _part(set()), _part({2}, b"last")], [_part(set()), _part({1})]
    )
    answers = _answers(nodes, "POST")
    assert [each.body for each in answers if covered_by(each)] == [b"first", b"", b"last", b""]
    assert nodes.done == [set(), set(), {0}, {0}, {0, 1}, {0, 1}]


def test_partitions_in_a_header_read_back() -> None:
    for numbers in ((), (0,), (1, 999)):
        assert decode_partitions(encode_partitions(numbers)) == frozenset(numbers)
    assert decode_partitions("none") == frozenset()


def test_a_write_that_leaves_a_partition_out_is_in_doubt() -> None:
    with pytest.raises(TimedOut):
        _write(_Nodes([_part({0, 2})], [_part(set())]))


def test_the_answers_of_nodes_of_an_earlier_version_count_as_whole() -> None:
    assert _ask(_Nodes([_part({0})], [_DONE]), "GET") == [200, 200]


class _Silent:
    """A transport that takes a request and then breaks."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def stream(self, _request: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("method", "raised", "expected"),
    [
        ("POST", "ReadError", TimedOut),
        ("POST", "ProtocolError", TimedOut),
        ("DELETE", "ReadTimeout", TimedOut),
        ("GET", "ReadError", Unavailable),
        ("POST", "ConnectError", NotLeader),
        ("POST", "ConnectTimeout", NotLeader),
        ("POST", "PoolTimeout", TooManyRequests),
        ("GET", "PoolTimeout", TooManyRequests),
    ],
)
def test_a_forwarded_write_that_may_have_arrived_is_in_doubt(
    method: str, raised: str, expected: type[GoqError], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = HttpProxy()
    silent = _Silent(getattr(transport_errors, raised)("broken"))
    monkeypatch.setattr(proxy._connections, "transport", lambda _url: silent)
    with pytest.raises(expected) as caught:
        run_simulated(proxy.forward("http://a", Request(method, "/", "", {}, b"")))
    assert type(caught.value) is expected


def test_a_leader_that_does_not_answer_is_not_said_to_be_missing() -> None:
    for answer, told in ((Unavailable("a is busy"), "a is busy"), (_MOVED, "leader .* changes")):
        nodes = _Nodes([answer], [])
        with pytest.raises(Unavailable, match=told):
            run_simulated(nodes.ask_partition_leader("t", 0, Request("GET", "/", "", {}, b"")))


def _part(numbers: Collection[int], body: bytes = b"") -> Response:
    """Return an answer that is for these partitions."""
    held = dict.fromkeys(numbers, object())
    router: Any = SimpleNamespace(handle=lambda _request: Response(200, body))
    request = Request("GET", "/", "", {COVERAGE_OF: "t"}, b"")
    answer = LocalAnswers(router, lambda _topic: held).answer(request)
    assert isinstance(answer, Response)
    return answer


def _write(nodes: _Nodes) -> list[int]:
    return _ask(nodes, "POST")


def _ask(nodes: _Nodes, method: str) -> list[int]:
    return [answer.status for answer in _answers(nodes, method)]


def _answers(nodes: _Nodes, method: str) -> list[Response]:
    request = Request(method, "/", "", {}, b"")
    return run_simulated(nodes.ask_all_leaders("t", request))
