"""Answers that nobody reads: bounded over all connections, and refused beyond the bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from goq.http import connection
from goq.http.context import HttpLimits
from goq.http.message import Request, Response
from tests.support.api.http_harness import get, serving
from tests.support.eventually import until

MIB = 1024 * 1024
SIZE = 16 * MIB
LIMITS = HttpLimits(unsent_bytes_max=20 * MIB)  # one answer and what the kernel takes, not two


class Answers:
    """Gives large and small answers; ``refused`` counts those that had no room."""

    def __init__(self) -> None:
        self.refused = 0

    def __call__(self, request: Request) -> Response:
        if request.path != "/large":
            return Response(200, b"small")
        answer = Response(200, bytes(SIZE))
        answer.on_refused = self._refuse
        return answer

    def _refuse(self) -> None:
        self.refused += 1


def test_large_answers_that_nobody_reads_are_bounded_and_others_go_on(
    run, caplog: pytest.LogCaptureFixture
):
    async def scenario():
        answers = Answers()
        async with serving(answers, LIMITS) as served:
            idle = [await served.connect() for _ in range(12)]
            for peer in idle:
                peer.send(get("/large"))
            await until(lambda: served.server.requests_total == len(idle))
            await until(lambda: answers.refused > 0)
            assert served.server.unsent_bytes <= LIMITS.unsent_bytes_max
            other = await served.connect()
            other.send(get("/large"))
            answer = await other.answer()
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            other.send(get("/small"))
            assert (await other.answer()).body == b"small"
            refused = answers.refused
            for peer in idle:
                await peer.answer()
            await until(lambda: served.server.unsent_bytes == 0)
            other.send(get("/large"))
            assert len((await other.answer()).body) == SIZE
            assert answers.refused == refused

    run(scenario)


def test_clients_that_take_nothing_make_room_for_others(run, monkeypatch: pytest.MonkeyPatch):
    async def scenario():
        async with serving(Answers(), LIMITS) as served:
            for _ in range(4):
                (await served.connect()).send(get("/large"))
            await until(lambda: served.server.requests_total == 4)
            monkeypatch.setattr(connection, "STALLED_S", 0.0)
            other = await served.connect()
            other.send(get("/large"))
            assert (await other.answer()).status == 429
            await until(lambda: served.server.unsent_bytes == 0)
            other.send(get("/large"))
            assert len((await other.answer()).body) == SIZE

    run(scenario)


def test_a_stream_ends_that_would_exceed_the_bound(run):
    closed = asyncio.Event()

    async def items() -> AsyncIterator[bytes]:
        try:
            for _ in range(10):
                yield bytes(LIMITS.unsent_bytes_max + 1)
        finally:
            closed.set()

    async def scenario():
        closed.clear()
        async with serving(lambda _request: Response(200, items()), LIMITS) as served:
            peer = await served.connect()
            peer.send(get("/"))
            await peer.head()
            await closed.wait()
            await peer.lost()

    run(scenario)


def test_a_client_that_takes_its_answer_too_slowly_is_cut_off(
    run, caplog: pytest.LogCaptureFixture
):
    async def sip(reader: asyncio.StreamReader) -> None:
        for _ in range(3 * SIZE // (64 * 1024)):
            await reader.readexactly(64 * 1024)
            await asyncio.sleep(0.005)

    async def scenario():
        limits = HttpLimits(write_timeout_ms=400, taken_bytes_min=64 * MIB)
        async with serving(lambda _request: Response(200, bytes(3 * SIZE)), limits) as served:
            peer = await served.connect(read_limit=MIB)
            peer.send(get("/"))
            await peer.head()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await sip(peer.reader)

    run(scenario)
