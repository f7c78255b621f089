"""A write to all leaders is refused only if none of them may have carried it out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from goq import limits
from goq.api.gateway.fanout import Fanout
from goq.cluster.forwarding.http_proxy import HttpProxy
from goq.errors import GoqError, NotLeader, PartitionOffline, TimedOut, Unavailable
from goq.http.client import errors as transport_errors
from goq.http.message import Request, Response

_DONE = Response(200, b"{}")
_MOVED = Response(421, b'{"code":"not_leader"}')
_FULL = Response(507, b'{"code":"storage_full"}')
_UNKNOWN = Response(504, b'{"code":"timed_out"}')
_MISTAKE = Response(400, b'{"code":"invalid_input"}')


class _Nodes(Fanout):
    """Two leaders, and what each answers to one request after another."""

    def __init__(self, first: Sequence[Any], second: Sequence[Any]) -> None:
        self.partition_leaders = self  # type: ignore[assignment]
        self._answers = {"http://a": list(first), "http://b": list(second)}

    def leader_urls(self, _topic: str | None) -> list[str | None]:
        return list(self._answers)

    def next_change(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def ask(self, url: str | None, _request: Request) -> Response:
        assert url is not None
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
    assert _write(_Nodes([_DONE], [_MOVED, NotLeader("x"), _DONE])) == [200, 200]


def test_a_read_is_never_in_doubt() -> None:
    with pytest.raises(PartitionOffline):
        _ask(_Nodes([_DONE], [Unavailable("broken")]), "GET")


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
        ("POST", "PoolTimeout", NotLeader),
    ],
)
def test_a_forwarded_write_that_may_have_arrived_is_in_doubt(
    method: str, raised: str, expected: type[GoqError], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = HttpProxy()
    silent = _Silent(getattr(transport_errors, raised)("broken"))
    monkeypatch.setattr(proxy._connections, "transport", lambda _url: silent)
    with pytest.raises(expected) as caught:
        asyncio.run(proxy.forward("http://a", Request(method, "/", "", {}, b"")))
    assert type(caught.value) is expected


def _write(nodes: _Nodes) -> list[int]:
    return _ask(nodes, "POST")


def _ask(nodes: _Nodes, method: str) -> list[int]:
    request = Request(method, "/", "", {}, b"")
    return [answer.status for answer in asyncio.run(nodes.ask_all_leaders("t", request))]
