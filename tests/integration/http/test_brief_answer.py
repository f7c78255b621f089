"""A handler that waits only for the disk runs without a task, and answers as others do."""

from __future__ import annotations

import asyncio

import pytest

from goq.errors import TopicNotFound
from goq.http.message import Request, Response
from tests.support.api.http_harness import post, serving
from tests.support.eventually import until


class _Brief:
    """A handler whose coroutine waits for what the test completes."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[bytes]] = []
        self.tasks: list[object] = []

    def __call__(self, request: Request):
        request.outlives_eof = request.is_brief = True
        return self._answer(request)

    async def _answer(self, request: Request) -> Response:
        self.tasks.append(asyncio.current_task())
        if request.path == "/at-once":
            return Response(200, b"at once")
        await asyncio.sleep(0)
        self.waiting.append(asyncio.get_running_loop().create_future())
        return Response(200, await self.waiting[-1])


def test_it_answers_at_once_or_later_without_a_task(run) -> None:
    async def scenario() -> None:
        handler = _Brief()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b"", path="/at-once") + post(b"", path="/later") * 2)
            assert (await peer.answer()).body == b"at once"
            for value in (b"first", b"second"):
                await until(lambda: handler.waiting)
                handler.waiting.pop().set_result(value)
                assert (await peer.answer()).body == value
        assert handler.tasks == [None, None, None]

    run(scenario)


@pytest.mark.parametrize(
    ("error", "status"), [(TopicNotFound("none"), 404), (asyncio.CancelledError(), 500)]
)
def test_an_error_is_an_answer(run, caplog, error: BaseException, status: int) -> None:
    async def scenario() -> None:
        handler = _Brief()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b""))
            await until(lambda: handler.waiting)
            if isinstance(error, asyncio.CancelledError):
                handler.waiting.pop().cancel()
            else:
                handler.waiting.pop().set_exception(error)
            assert (await peer.answer()).status == status
            peer.send(post(b"", path="/at-once"))
            assert (await peer.answer()).status == 200

    run(scenario)


@pytest.mark.parametrize("way", ["reset", "leave"])
def test_its_work_is_finished_for_a_client_that_is_gone(run, way: str) -> None:
    async def scenario() -> None:
        handler = _Brief()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b"some body"))
            await until(lambda: handler.waiting)
            getattr(peer, way)()
            handler.waiting.pop().set_result(b"done")
            await until(lambda: not served.server._shared.connections)
            assert served.server._shared.bodies_in_flight_bytes == 0
            other = await served.connect()
            other.send(post(b"", path="/at-once"))
            assert (await other.answer()).status == 200

    run(scenario)


def test_a_client_that_shut_its_sending_side_gets_the_answer(run) -> None:
    async def scenario() -> None:
        handler = _Brief()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b""))
            peer.end_input()
            await until(lambda: handler.waiting)
            handler.waiting.pop().set_result(b"done")
            assert (await peer.answer()).body == b"done"
            assert await peer.rest() == b""

    run(scenario)


class _Lease:
    """A handler whose answer is given back if the client is gone."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[bytes]] = []
        self.given_back = 0

    def __call__(self, request: Request):
        request.is_brief = True
        return self._answer()

    async def _answer(self) -> Response:
        self.waiting.append(asyncio.get_running_loop().create_future())
        response = Response(200, await self.waiting[-1])
        response.on_refused = self._give_back
        return response

    def _give_back(self) -> None:
        self.given_back += 1


@pytest.mark.parametrize("leave", ["close", "half-close", "half-close with the request"])
def test_the_answer_for_a_client_that_is_gone_is_given_back(run, leave: str) -> None:
    async def scenario() -> None:
        handler = _Lease()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b""))
            if leave == "half-close with the request":
                peer.end_input()
            await until(lambda: handler.waiting)
            if leave == "close":
                peer.leave()
            elif leave == "half-close":
                peer.end_input()
            if leave != "close":
                assert await peer.rest() == b""
            await until(lambda: not served.server.connection_count)
            handler.waiting.pop().set_result(b"message")
            await until(lambda: handler.given_back)
            assert handler.given_back == 1

    run(scenario)
