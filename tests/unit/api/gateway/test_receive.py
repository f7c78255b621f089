"""No lease is lost where the consumer is gone, or a leader is, before all have answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import pytest

from goq import limits
from goq.api.gateway.coverage import COVERED
from goq.api.gateway.fanout import Fanout
from goq.api.gateway.receive import ReceiveGateway
from goq.api.gateway.streams import StreamGateway
from goq.api.routing_policy import HOLDER, OFFLINE, READY, REST
from goq.errors import NotLeader, PartitionOffline, TimedOut, Unavailable
from goq.http.message import Request, Response
from goq.model import Receipt
from tests.support.cluster.replication.loop import run_simulated
from tests.support.eventually import until

_HEADERS = {"content-type": "application/json"}


class _Nodes:
    """Three nodes of which each answers when the test says so."""

    def __init__(self) -> None:
        self.partition_leaders = self
        self.urls: list[str | None] = [None, "http://b", "http://c"]
        self.leading: list[str | None] = ["a", "b", "c"]
        self.asked: dict[str | None, asyncio.Future[Response]] = {}
        self.bodies: dict[str | None, object] = {}
        self.order: list[str | None] = []
        self.rests: list[str | None] = []
        self.takes: list[tuple[str | None, int, bool]] = []
        self.change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.given_back: list[str] = []
        self.holders: dict[str | None, str] = {}

    def leader_urls(self, _topic: str | None) -> list[str | None]:
        return self.urls

    def leaders(self, _topic: str) -> list[str | None]:
        return self.leading

    def next_change(self) -> asyncio.Future[None]:
        return self.change

    def lose(self, url: str) -> None:
        self.urls = [each for each in self.urls if each != url]
        self.change.set_result(None)
        self.change = asyncio.get_running_loop().create_future()

    async def ask(
        self, url: str | None, request: Request, *, is_small: bool = False, held_ms: int = 0
    ) -> Response:
        self.order.append(url)
        body = msgspec.json.decode(request.body or b"null")
        if body is not None:
            self.takes.append((url, body["max_messages"], is_small))
        self.bodies[url] = body
        self.rests += [url] * (REST in request.headers)
        self.holders[url] = request.headers.get(HOLDER, "")
        self.asked[url] = asyncio.get_running_loop().create_future()
        return await self.asked[url]

    async def wait_for(self, url: str | None) -> asyncio.Future[Response]:
        def is_asked() -> bool:
            return url in self.asked and not self.asked[url].done()

        await until(is_asked, seconds=10)
        return self.asked[url]

    async def return_leases(self, topic: str, group: str, receipts: Iterable[Receipt]) -> None:
        assert (topic, group) == ("t", "g")
        self.given_back += map(str, receipts)

    def return_held(self, topic: str, group: str, holder_id: str, reason: str = "") -> None:
        assert (topic, group, reason) == ("t", "g", "")
        self.given_back.append(holder_id)


def test_what_one_leader_gave_goes_back_when_the_client_goes_while_another_is_asked() -> None:
    async def run() -> list[str]:
        nodes, running = _begun(max_messages=10)
        (await nodes.wait_for("http://b")).set_result(_leased("1:7:0", "1:7:1"))
        late = await nodes.wait_for("http://c")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        late.set_result(_leased("2:8:5"))
        await until(lambda: len(nodes.given_back) == 3)
        return nodes.given_back

    assert sorted(run_simulated(run())) == ["1:7:0", "1:7:1", "2:8:5"]


def test_what_leaders_gave_goes_back_when_the_answer_cannot_be_sent() -> None:
    async def run() -> list[str]:
        nodes, running = _begun(max_messages=2)
        (await nodes.wait_for("http://b")).set_result(_leased("1:7:0"))
        (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        answer = await running
        assert answer.on_refused is not None
        assert nodes.given_back == []
        answer.on_refused()
        await until(lambda: len(nodes.given_back) == 2)
        return nodes.given_back

    assert sorted(run_simulated(run())) == ["1:7:0", "2:8:5"]


def test_a_leader_that_is_replaced_is_waited_for_no_more_and_gets_back_what_it_leased() -> None:
    async def run() -> tuple[Response, list[str]]:
        nodes, running = _begun(max_messages=10)
        hung = await nodes.wait_for("http://b")
        nodes.lose("http://b")
        (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        (await nodes.wait_for(None)).set_result(_leased())
        answer = await running
        hung.set_result(_leased("1:7:0"))
        await until(lambda: nodes.given_back != [])
        return answer, nodes.given_back

    answer, given_back = run_simulated(run())
    assert b"2:8:5" in bytes(answer.body)
    assert given_back == ["1:7:0"]


@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_leader_may_have_leased_for_an_answer_that_is_lost_goes_back(is_late: bool) -> None:
    async def run() -> tuple[list[str], str]:
        nodes, running = _begun(max_messages=10)
        lost = await nodes.wait_for("http://b")
        if is_late:
            nodes.lose("http://b")
            (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        lost.set_exception(TimedOut("the stream with node b has ended"))
        if not is_late:
            (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        (await nodes.wait_for(None)).set_result(_leased())
        await running
        await until(lambda: nodes.given_back != [])
        return nodes.given_back, nodes.holders["http://b"]

    given_back, holder_id = run_simulated(run())
    assert given_back == [holder_id]
    assert len(holder_id) == 16


def test_a_leader_that_hangs_is_not_waited_for_long_and_gets_back_what_it_leased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REMOTE_STORE_WAIT_MS", 1)

    async def run() -> list[str]:
        nodes, running = _begun(max_messages=10, wait="60s")
        hung = await nodes.wait_for("http://b")
        await nodes.wait_for(None)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        hung.set_result(_leased("1:7:0"))
        await until(lambda: nodes.given_back != [])
        return nodes.given_back

    assert run_simulated(run()) == ["1:7:0"]


def test_each_leader_is_asked_for_what_is_left_and_none_that_needs_not() -> None:
    async def run() -> dict[str | None, object]:
        nodes, running = _begun(max_messages=3)
        (await nodes.wait_for("http://b")).set_result(_leased("1:7:0", "1:7:1"))
        (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        await running
        return nodes.bodies

    bodies = run_simulated(run())
    assert {
        url: body["max_messages"] for url, body in bodies.items() if isinstance(body, dict)
    } == {
        "http://b": 3,
        "http://c": 1,
    }


def test_a_leader_is_told_that_its_answer_is_added_to_others() -> None:
    async def run() -> list[str | None]:
        nodes, running = _begun(max_messages=3)
        (await nodes.wait_for("http://b")).set_result(_leased())
        (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        (await nodes.wait_for(None)).set_result(_leased("0:1:1"))
        await running
        return nodes.rests

    assert run_simulated(run()) == [None]


def test_a_leader_that_has_more_than_a_stream_carries_is_asked_for_the_rest_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STREAM_ANSWER_MESSAGES_MAX", 2)

    async def run() -> list[tuple[str | None, int, bool]]:
        nodes, running = _begun(max_messages=5)
        (await nodes.wait_for("http://b")).set_result(_leased("1:7:0", "1:7:1"))
        (await nodes.wait_for("http://b")).set_result(_leased("1:7:2"))
        (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        (await nodes.wait_for(None)).set_result(_leased("0:1:1"))
        await running
        return nodes.takes

    assert run_simulated(run()) == [
        ("http://b", 2, True),
        ("http://b", 3, False),
        ("http://c", 2, True),
        (None, 1, True),
    ]


@pytest.mark.parametrize(("more", "times"), [(0, 2), (1, 1)])
def test_a_leader_has_more_if_its_answer_fills_half_of_the_bytes(
    monkeypatch: pytest.MonkeyPatch, more: int, times: int
) -> None:
    answer = _leased("1:7:0")
    monkeypatch.setattr(limits, "STREAM_ANSWER_BYTES_MAX", 2 * len(answer.body) + more)

    async def run() -> list[tuple[str | None, int, bool]]:
        nodes, running = _begun(max_messages=5)
        for _ in range(times):
            (await nodes.wait_for("http://b")).set_result(answer)
        await nodes.wait_for("http://c")
        running.cancel()
        return nodes.takes

    urls = [url for url, *_ in run_simulated(run())]
    assert urls == ["http://b"] * times + ["http://c"]


def test_after_a_wait_those_that_have_messages_are_asked_alone() -> None:
    async def run() -> tuple[Response, list[str | None]]:
        nodes, running = await _waiting("60s")
        (await nodes.wait_for("http://c")).set_result(Response(200, b'{"count": 2}'))
        (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        return await running, nodes.order

    answer, order = run_simulated(run())
    assert b"2:8:5" in bytes(answer.body)
    assert order == ["http://c"]


@pytest.mark.parametrize(
    "told",
    [
        Response(200, b'{"count": 1}'),
        Response(404, b'{"code": "group_not_found"}'),
        Unavailable("away"),
    ],
)
def test_a_wait_that_tells_of_no_messages_is_followed_by_asking_all(
    told: Response | Exception,
) -> None:
    async def run() -> list[str | None]:
        nodes, running = await _waiting("60s")
        waiting = await nodes.wait_for("http://c")
        if isinstance(told, Exception):
            waiting.set_exception(told)
        else:
            waiting.set_result(told)
        return await _answered(nodes, running, _leased("2:8:5"))

    assert sorted(run_simulated(run()), key=str) == [None, "http://b", "http://c"]


def test_a_leader_that_tells_of_messages_and_fails_is_not_asked_over_and_over() -> None:
    async def run() -> list[str | None]:
        nodes, running = await _waiting("60s")
        (await nodes.wait_for("http://c")).set_result(Response(200, b'{"count": 2}'))
        (await nodes.wait_for("http://c")).set_exception(Unavailable("broken"))
        nodes.order.clear()
        await until(lambda: len(nodes.order) == 2)
        running.cancel()
        return nodes.order

    assert sorted(run_simulated(run()), key=str) == [None, "http://b"]


def test_all_leaders_are_asked_at_the_end_of_a_wait() -> None:
    async def run() -> list[str | None]:
        nodes, running = await _waiting("100ms")
        (await nodes.wait_for("http://c")).set_result(Response(200, b'{"count": 2}'))
        late = await nodes.wait_for("http://c")
        await asyncio.sleep(0.15)
        nodes.order.clear()
        late.set_result(_leased())
        return await _answered(nodes, running, _leased())

    assert sorted(run_simulated(run()), key=str) == [None, "http://b", "http://c"]


async def _waiting(wait: str) -> tuple[_Nodes, asyncio.Task[Response]]:
    """Return a receive that has found nothing and waits for each node."""
    nodes, running = _begun(max_messages=3, wait=wait)
    for url in ("http://b", "http://c", None):
        (await nodes.wait_for(url)).set_result(_leased())
    for url in ("http://b", "http://c", None):
        await nodes.wait_for(url)
    nodes.order.clear()
    return nodes, running


async def _answered(
    nodes: _Nodes, running: asyncio.Task[Response], answer: Response
) -> list[str | None]:
    """Give each node that is asked the same answer until the receive ends; return who was asked."""
    asked: list[str | None] = []
    while not running.done():
        await until(lambda: running.done() or nodes.order)
        if nodes.order:
            asked.append(nodes.order.pop())
            nodes.asked[asked[-1]].set_result(answer)
    await running
    return asked


def test_a_leader_that_fails_keeps_nothing_of_the_others_back() -> None:
    async def run() -> Response:
        nodes, running = _begun(max_messages=3)
        (await nodes.wait_for("http://b")).set_exception(Unavailable("broken"))
        (await nodes.wait_for("http://c")).set_result(_leased("2:8:5"))
        (await nodes.wait_for(None)).set_result(Response(507, b"{}"))
        return await running

    assert run_simulated(run()).status == 200


def test_the_error_is_told_where_no_leader_could_be_asked() -> None:
    async def run() -> None:
        nodes, running = _begun(max_messages=3)
        for url in ("http://b", "http://c", None):
            (await nodes.wait_for(url)).set_exception(Unavailable("broken"))
        await running

    with pytest.raises(Unavailable, match="broken"):
        run_simulated(run())


def _told(*, leading: str | None = "c", **answers: Response | Exception) -> PartitionOffline:
    """Return the error of a receive that finds nothing; ``b`` and ``c`` are answers of nodes."""

    async def run() -> None:
        nodes, running = _begun(max_messages=3)
        nodes.leading[2] = leading
        for url in ("http://b", "http://c", None):
            answer = answers.get("here" if url is None else url[-1], _leased())
            asked = await nodes.wait_for(url)
            if isinstance(answer, Exception):
                asked.set_exception(answer)
            else:
                asked.set_result(answer)
        await running

    with pytest.raises(PartitionOffline) as raised:
        run_simulated(run())
    return raised.value


def test_a_receive_without_messages_tells_of_an_offline_partition_of_a_leader() -> None:
    offline = _leased()
    offline.headers[OFFLINE] = "partition%202%20is%20offline"
    assert _told(b=offline).detail == "partition 2 is offline"


def test_a_receive_without_messages_tells_of_a_partition_without_leader() -> None:
    assert "partition 2 of t has no leader" in _told(leading=None).detail


@pytest.mark.parametrize(
    "failure",
    [
        NotLeader("b leads nothing"),
        Response(421, b'{"code": "not_leader"}'),
        Response(404, b'{"code": "topic_not_found"}'),
    ],
)
def test_a_receive_without_messages_tells_of_a_leader_that_gave_no_answer(
    failure: Response | Exception,
) -> None:
    assert "not all of topic t can be asked now" in _told(c=failure).detail


def _begun(**asked: object) -> tuple[_Nodes, asyncio.Task[Response]]:
    nodes = _Nodes()
    asking: Fanout = nodes
    streams = StreamGateway(asking, nodes)
    receiving = ReceiveGateway(asking, nodes, streams)
    request = Request("POST", "/", "", _HEADERS, msgspec.json.encode(asked))
    return nodes, asyncio.ensure_future(receiving.receive(request, ["t", "g"]))


def _leased(*receipts: str) -> Response:
    body = msgspec.json.encode({"messages": [{"receipt": text} for text in receipts]})
    return Response(200, body, "application/json", {READY: "1"})


def test_a_receive_without_messages_tells_of_a_partition_that_its_leader_does_not_serve() -> None:
    here, b, c = _leased(), _leased(), _leased()
    for answer, bits in ((here, "1"), (b, "2"), (c, "0")):
        answer.headers[COVERED] = bits
    assert "partition 2 of t" in _told(here=here, b=b, c=c).detail


@pytest.mark.parametrize("bits", ["4", None])
def test_a_receive_is_empty_where_the_leaders_looked_into_all_or_one_does_not_say(
    bits: str | None,
) -> None:
    async def run() -> Response:
        nodes, running = _begun(max_messages=3)
        for url, said in (("http://b", "2"), ("http://c", bits), (None, "1")):
            answer = _leased()
            if said is not None:
                answer.headers[COVERED] = said
            (await nodes.wait_for(url)).set_result(answer)
        return await running

    assert run_simulated(run()).status == 200
