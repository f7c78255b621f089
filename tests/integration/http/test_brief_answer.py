"""Answers that wait only for the disk need no task: brief coroutines, and answers by a call."""

from __future__ import annotations

import asyncio

import pytest

from goq.errors import TopicNotFound
from goq.http.message import DeferredAnswer, Request, Response
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


class _Deferring:
    """A handler whose answers the test gives."""

    def __init__(self, *, outlives_eof: bool = True) -> None:
        self.waiting: list[DeferredAnswer] = []
        self._outlives_eof = outlives_eof

    def __call__(self, request: Request) -> DeferredAnswer:
        request.is_brief = True
        request.outlives_eof = self._outlives_eof
        answer = DeferredAnswer()
        if request.path == "/at-once":
            answer.complete(Response(200, b"at once"))
        else:
            self.waiting.append(answer)
        return answer


def test_deferred_answers_of_a_connection_are_sent_in_order(run) -> None:
    async def scenario() -> None:
        handler = _Deferring()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(
                post(b"", path="/at-once")
                + post(b"", path="/later") * 2
                + post(b"", path="/at-once")
            )
            assert (await peer.answer()).body == b"at once"
            for value in (b"first", b"second"):
                await until(lambda: handler.waiting)
                assert len(handler.waiting) == 1
                handler.waiting.pop().complete(Response(200, value))
                assert (await peer.answer()).body == value
            assert (await peer.answer()).body == b"at once"

    run(scenario)


@pytest.mark.parametrize(
    ("error", "status"), [(TopicNotFound("none"), 404), (KeyError("a bug"), 500)]
)
def test_a_deferred_error_is_an_answer(run, caplog, error: Exception, status: int) -> None:
    async def scenario() -> None:
        handler = _Deferring()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b""))
            await until(lambda: handler.waiting)
            handler.waiting.pop().complete(error)
            assert (await peer.answer()).status == status
            peer.send(post(b"", path="/at-once"))
            assert (await peer.answer()).status == 200

    run(scenario)


@pytest.mark.parametrize("way", ["reset", "leave", "end_input"])
def test_a_deferred_answer_for_a_client_that_is_gone_is_given_back(run, way: str) -> None:
    async def scenario() -> None:
        handler = _Deferring(outlives_eof=False)
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b"some body"))
            await until(lambda: handler.waiting)
            getattr(peer, way)()
            await until(lambda: not served.server.connection_count)
            given_back = []
            response = Response(200, b"done")
            response.on_refused = lambda: given_back.append(True)
            handler.waiting.pop().complete(response)
            assert given_back == [True]
            assert served.server._shared.bodies_in_flight_bytes == 0

    run(scenario)


def test_a_client_that_shut_its_sending_side_gets_a_deferred_answer(run) -> None:
    async def scenario() -> None:
        handler = _Deferring()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b""))
            peer.end_input()
            await until(lambda: handler.waiting)
            handler.waiting.pop().complete(Response(200, b"done"))
            assert (await peer.answer()).body == b"done"
            assert await peer.rest() == b""

    run(scenario)


@pytest.mark.parametrize("is_given_first", [True, False])
def test_a_deferred_answer_can_be_awaited(run, is_given_first: bool) -> None:
    async def scenario() -> None:
        good, bad = DeferredAnswer(), DeferredAnswer()

        def give() -> None:
            good.complete(Response(201))
            bad.complete(TopicNotFound("none"))

        if is_given_first:
            give()
        else:
            asyncio.get_running_loop().call_later(0.01, give)
        assert (await good).status == 201
        with pytest.raises(TopicNotFound):
            await bad

    run(scenario)


def test_a_deferred_answer_that_nobody_awaits_any_more_is_given_back(run) -> None:
    async def scenario() -> None:
        answer, given_back = DeferredAnswer(), []

        async def wait() -> Response:
            return await answer

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        response = Response(200)
        response.on_refused = lambda: given_back.append(True)
        answer.complete(response)
        assert given_back == [True]

    run(scenario)


def test_the_next_request_is_not_handled_within_what_gives_an_answer(run) -> None:
    async def scenario() -> None:
        handler = _Deferring()
        async with serving(handler) as served:
            peer = await served.connect()
            peer.send(post(b"", path="/later") * 2)
            await until(lambda: handler.waiting)
            handler.waiting.pop().complete(Response(200, b"first"))
            assert not handler.waiting
            await until(lambda: handler.waiting)
            handler.waiting.pop().complete(Response(200, b"second"))
            assert (await peer.answer()).body == b"first"
            assert (await peer.answer()).body == b"second"

    run(scenario)


def test_a_bug_in_sending_one_answer_does_not_reach_who_completes_it(run) -> None:
    async def scenario() -> None:
        answer, told = DeferredAnswer(), []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, told_of: told.append(told_of)
        )

        def on_answer(_response: Response | None, _error: BaseException | None) -> None:
            raise KeyError("a bug")

        answer.then(on_answer)
        answer.complete(Response(200))
        assert isinstance(told[0]["exception"], KeyError)

    run(scenario)
