"""A head that comes again is not parsed again, and means exactly what it meant."""

from __future__ import annotations

from random import Random

import pytest

from goq.http.context import HEADS_MAX, HttpLimits
from goq.http.message import Request, Response
from goq.http.request.request_parser import RequestParser
from tests.support.api.http_harness import describe, post, serving


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the parser was fed."""
    fed: list[bytes] = []
    parse = RequestParser._parse

    def note(self: RequestParser, data: bytes | memoryview) -> None:
        fed.append(bytes(data))
        parse(self, data)

    monkeypatch.setattr(RequestParser, "_parse", note)
    return fed


def test_the_same_head_is_parsed_once_for_all_connections(run, parsed: list[bytes]) -> None:
    async def scenario() -> None:
        async with serving(describe) as served:
            for _ in range(3):
                peer = await served.connect()
                for body in (b"abc", b"xyz", b"\r\n\r"):
                    peer.send(post(body, path="/a?b=c"))
                    assert (await peer.answer()).body == b"POST /a 3"
        assert len(parsed) == 1

    run(scenario)
    parsed.clear()


def test_each_request_has_its_own_body_and_headers(run) -> None:
    seen: list[tuple[bytes, dict[str, str], str]] = []

    def handler(request: Request) -> Response:
        seen.append((request.body, dict(request.headers), request.query_string))
        request.headers["x-changed"] = "yes"
        return Response(200)

    async def scenario() -> None:
        seen.clear()
        async with serving(handler) as served:
            peer = await served.connect()
            for body in (b"one", b"two", b"six"):
                peer.send(post(body, path="/a?b=c"))
                await peer.answer()
        assert [body for body, _, _ in seen] == [b"one", b"two", b"six"]
        assert all(headers == seen[0][1] and query == "b=c" for _, headers, query in seen)
        assert "x-changed" not in seen[2][1]

    run(scenario)


def test_reads_that_hold_less_or_more_than_a_request_are_parsed(run) -> None:
    """The head is known, and the body comes late, or another request with it."""

    async def scenario() -> None:
        random = Random(5)
        async with serving(describe) as served:
            peer = await served.connect()
            for _ in range(200):
                bodies = [random.choice([b"", b"abc", b"\r\n\r\n", b"GET / "]) for _ in range(3)]
                data = b"".join(post(body, path=f"/{len(body)}") for body in bodies)
                cuts = sorted(random.sample(range(1, len(data)), random.randint(0, 3)))
                for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                    peer.send(data[start:end])
                    if random.random() < 0.5:
                        await peer.writer.drain()
                for body in bodies:
                    answer = await peer.answer()
                    assert answer.body == f"POST /{len(body)} {len(body)}".encode()

    run(scenario)


@pytest.mark.parametrize(
    "line", [b"Expect: 100-continue", b"Origin: http://127.0.0.1", b"Transfer-Encoding: chunked"]
)
def test_heads_that_depend_on_more_than_their_bytes_are_always_parsed(
    run, parsed: list[bytes], line: bytes
) -> None:
    async def scenario() -> None:
        parsed.clear()
        body = b"0\r\n\r\n" if b"chunked" in line else b""
        async with serving(describe) as served:
            peer = await served.connect()
            for _ in range(3):
                peer.send(b"POST /a HTTP/1.1\r\nHost: 127.0.0.1\r\n" + line + b"\r\n\r\n" + body)
                await peer.answer()
        assert len(parsed) >= 3

    run(scenario)


def test_a_host_that_is_no_longer_allowed_is_refused_though_its_head_is_known(run) -> None:
    async def scenario() -> None:
        async with serving(describe) as served:
            served.server.allow_hosts(["goq.example"])
            peer = await served.connect()
            request = b"GET /a HTTP/1.1\r\nHost: goq.example\r\n\r\n"
            for _ in range(2):
                peer.send(request)
                assert (await peer.answer()).status == 200
            served.server.allow_hosts([])
            peer.send(request)
            assert (await peer.answer()).status == 421

    run(scenario)


def test_bodies_of_known_heads_count_towards_the_bound_of_all_bodies(run) -> None:
    async def scenario() -> None:
        limits = HttpLimits(bodies_in_flight_bytes_max=1000)
        async with serving(describe, limits) as served:
            peer = await served.connect()
            for _ in range(5):
                peer.send(post(bytes(900)))
                assert (await peer.answer()).status == 200
            shared = served.server._shared
            assert shared.bodies_in_flight_bytes == 0
            shared.bodies_in_flight_bytes += 200
            peer.send(post(bytes(900)))
            assert (await peer.answer()).status == 429
            shared.bodies_in_flight_bytes -= 200

    run(scenario)


def test_so_many_heads_are_kept_and_no_more(run) -> None:
    async def scenario() -> None:
        async with serving(describe) as served:
            peer = await served.connect()
            for number in range(HEADS_MAX + 10):
                peer.send(post(b"x", path=f"/{number}"))
                assert (await peer.answer()).status == 200
                assert len(served.server._shared.known_heads._heads) <= HEADS_MAX

    run(scenario)
