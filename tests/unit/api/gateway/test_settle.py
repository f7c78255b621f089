"""Receipts go to who leads their partitions; none of them is lost with a leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from goq import limits
from goq.api.gateway.fanout import Fanout, decode_document
from goq.api.gateway.settle import settle
from goq.errors import NotLeader, TimedOut, Unavailable
from goq.http.message import Request, Response
from tests.support.cluster.replication.loop import run_simulated

_RECEIPTS = ["2:1:0", "0:1:0", "1:1:0", "0:1:1", "7:1:0"]


class _Nodes:
    """Three partitions with a leader each; the answers of a node, by its URL or as ``here``."""

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self.partition_leaders = self
        self.asked: list[tuple[str | None, Any]] = []
        self._answers = answers
        self.led: list[str | None] = ["http://a", "http://b", "http://c"]
        self.here: int | None = None
        """The partition that this node leads, if any."""
        self.added: list[str | None] = []
        """The leaders of partitions that this node hears of when it catches up."""
        self.unknown: Unavailable | None = None
        """Why this node cannot catch up, if it cannot."""
        self.is_cut_off = False

    def patience_s(self) -> float:
        return 0.0 if self.is_cut_off else limits.FORWARD_LEADER_WAIT_S

    def leaders(self, _topic: str) -> Sequence[str | None]:
        return self.led

    def leader_url(self, _topic: str, number: int) -> str | None:
        if self.led[number] is None and number != self.here:
            raise NotLeader("nobody")
        return self.led[number]

    async def catch_up(self) -> None:
        if self.unknown is not None:
            raise self.unknown
        self.led += self.added

    async def answer_here(self, _request: Request) -> Response:
        return Response(400, b'{"code":"here"}')

    async def ask(self, url: str | None, request: Request, *, is_small: bool) -> Response:
        body = msgspec.json.decode(request.body)
        self.asked.append((url, body))
        answers = self._answers.get(url or "here", [])
        answer = answers.pop(0) if answers else len(body["receipts"])
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Response):
            return answer
        return Response(200, msgspec.json.encode({"settled": answer, "failed": []}))


def test_each_leader_is_asked_for_its_own_and_told_all_else() -> None:
    nodes = _Nodes({})
    assert _settled(nodes, reason="why") == {"settled": 5, "failed": []}
    assert sorted(nodes.asked) == [
        ("http://a", {"receipts": ["0:1:0", "0:1:1", "7:1:0"], "reason": "why"}),
        ("http://b", {"receipts": ["1:1:0"], "reason": "why"}),
        ("http://c", {"receipts": ["2:1:0"], "reason": "why"}),
    ]


def test_who_did_nothing_is_asked_again_and_only_that_node() -> None:
    nodes = _Nodes({"http://b": [NotLeader("gone"), Response(421, b"{}")]})
    assert _settled(nodes) == {"settled": 5, "failed": []}
    assert [url for url, _ in nodes.asked].count("http://b") == 3
    assert [url for url, _ in nodes.asked].count("http://a") == 1


def test_what_a_leader_may_have_done_is_not_asked_again_but_told() -> None:
    nodes = _Nodes({"http://a": [TimedOut("broken")], "http://c": [Response(507, _FULL)]})
    answer = _settled(nodes)
    assert answer["settled"] == 1
    assert [(each["receipt"], each["code"]) for each in answer["failed"]] == [
        ("2:1:0", "storage_full"),
        ("0:1:0", "timed_out"),
        ("0:1:1", "timed_out"),
        ("7:1:0", "timed_out"),
    ]


def test_receipts_of_a_partition_that_nobody_leads_fail_and_the_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FORWARD_LEADER_WAIT_S", 0.1)
    nodes = _Nodes({})
    nodes.led[1] = None
    answer = _settled(nodes)
    assert answer == {"settled": 4, "failed": [{"receipt": "1:1:0", "code": "partition_offline"}]}


def test_a_node_that_is_cut_off_answers_without_a_wait_for_another_leader() -> None:
    gone = [NotLeader("gone")] * 9
    nodes = _Nodes({"http://a": gone, "http://b": gone, "http://c": gone})
    nodes.is_cut_off = True
    assert {each["code"] for each in _settled(nodes)["failed"]} == {"partition_offline"}
    assert len(nodes.asked) == 3


def test_a_receipt_of_a_partition_that_this_node_has_not_heard_of_goes_to_its_leader() -> None:
    nodes = _Nodes({})
    nodes.added = ["http://a"] * 4 + ["http://d"]
    assert _settled(nodes) == {"settled": 5, "failed": []}
    assert ("http://d", {"receipts": ["7:1:0"]}) in nodes.asked


def test_nothing_is_settled_while_a_node_cannot_know_whether_there_is_a_partition() -> None:
    nodes = _Nodes({})
    nodes.unknown = Unavailable("cut off")
    with pytest.raises(Unavailable, match="cut off"):
        _settled(nodes)
    assert nodes.asked == []


def test_a_mistake_is_answered_as_one() -> None:
    wrong = Response(400, b'{"code":"invalid_input"}')
    nodes = _Nodes({url: [wrong] for url in ("http://a", "http://b", "http://c")})
    assert _settled(nodes) == {"code": "invalid_input"}


def test_a_refusal_by_one_leader_does_not_hide_what_the_others_settled() -> None:
    nodes = _Nodes({"http://b": [Response(404, b'{"code":"topic_not_found"}')]})
    answer = _settled(nodes)
    assert answer == {"settled": 4, "failed": [{"receipt": "1:1:0", "code": "topic_not_found"}]}


def test_a_topic_that_this_node_leads_and_has_not_opened_yet_is_not_missing() -> None:
    missing = Response(404, b'{"code":"topic_not_found"}')
    nodes = _Nodes({"here": [missing, missing]})
    nodes.led[1] = None
    nodes.here = 1
    assert _settled(nodes) == {"settled": 5, "failed": []}
    assert [url for url, _ in nodes.asked] == ["http://c", "http://a", None, None, None]


def test_receipts_of_a_partition_that_moved_are_sent_to_its_next_leader() -> None:
    moved = {"settled": 2, "failed": [{"receipt": "0:1:1", "code": "not_leader"}]}
    nodes = _Nodes({"http://a": [Response(200, msgspec.json.encode(moved))]})
    assert _settled(nodes) == {"settled": 5, "failed": []}
    assert nodes.asked[-1] == ("http://a", {"receipts": ["0:1:1"]})


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"receipts":["\xff"]}',
        b"[]",
        b"",
        b'{"receipts":[]}',
        b'{"receipts":[1]}',
        b'{"receipts":["x"]}',
    ],
)
def test_what_cannot_be_shared_out_is_for_the_node_itself_to_refuse(body: bytes) -> None:
    nodes = _Nodes({})
    assert _answer(nodes, body) == {"code": "here"}
    assert nodes.asked == []


_FULL = b'{"code":"storage_full"}'


def _settled(nodes: _Nodes, **fields: Any) -> Any:
    return _answer(nodes, msgspec.json.encode({"receipts": _RECEIPTS, **fields}))


def _answer(nodes: _Nodes, body: bytes) -> Any:
    asking: Fanout = nodes
    request = Request("POST", "/", "", {"content-type": "application/json"}, body)
    return decode_document(run_simulated(settle(asking, request, "t", nodes.catch_up)))
