"""One server connection: requests are answered in order, within bounds of memory and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from functools import partial
from ipaddress import ip_address
from time import perf_counter
from types import CoroutineType
from typing import Any, cast

from goq.errors import GoqError, Unavailable
from goq.http.context import ServerContext
from goq.http.loop_watch import TimedSteps
from goq.http.message import (
    BriefAnswer,
    CreateProtocol,
    DeferredAnswer,
    OwnedStream,
    Request,
    Response,
)
from goq.http.request.request_parser import Phase, RequestParser
from goq.http.response_writer import (
    CLOSE,
    CONTINUE,
    KEEP_ALIVE,
    SWITCHING_PROTOCOLS,
    ResponseWriter,
)
from goq.http.timeouts import LINGER_MS, Timeouts
from goq.http.unsent_answers import STALLED_S


class Connection(asyncio.Protocol):
    """The server's side of one connection.

    One request is answered at a time (``_current``); the next wait in the parser. A handler that
    answers at once needs no task. While the client does not read its answer, no request is started:
    the buffer holds at most one answer for it.

    ``_task`` runs the handler or the stream of the current request. Cancelling sets it to ``None``,
    so it is cancelled once and can tell that it was.

    After a refusal some input may be unread. An immediate close would make the kernel reset the
    connection, and the client could lose the answer with the reason. So only the sending side is
    closed, and input is discarded until the client closes or ``LINGER_MS`` have passed.
    """

    __slots__ = (
        "_admitted",
        "_closing",
        "_current",
        "_eof",
        "_held",
        "_loop",
        "_reader",
        "_reading_paused",
        "_shared",
        "_task",
        "_timeouts",
        "_transport",
        "_unstarted",
        "_writer",
        "certificate",
        "is_local",
    )

    _transport: asyncio.Transport
    _reader: RequestParser
    _writer: ResponseWriter
    _timeouts: Timeouts

    def __init__(self, shared: ServerContext) -> None:
        self.certificate: tuple[str, ...] = ()
        """The names in the client's certificate."""
        self.is_local = False
        """Whether the client is on this machine."""
        self._shared = shared
        self._loop = shared.loop
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._unstarted: Awaitable[Response] | None = None
        self._reading_paused = False
        self._admitted = False
        self._eof = False
        self._closing = False
        self._held: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it when the server has too many."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is not one by class
        shared = self._shared
        limits = shared.limits
        self._transport = transport
        self._reader = RequestParser(shared, _peer_name(transport))
        self._reader.certificate = self.certificate
        self._reader.is_local = self.is_local = _is_local(transport)
        self._writer = ResponseWriter(shared, transport)
        self._timeouts = Timeouts(
            self._loop, transport, limits, self._reading_expired, self.abort, self._note_unsent
        )
        shared.connections.add(self)
        if shared.draining:
            self._close()
        elif shared.connection_count >= limits.connections_max:
            self._refuse(Unavailable("the node has no free connection", retry_after_ms=1000))
        else:
            self._admitted = True
            shared.admitted_count += 1
            self._watch_reading()

    def data_received(self, data: bytes) -> None:
        """Parse requests, and start the first if none is in progress."""
        if self._closing:
            return
        self._reader.feed(data)
        if self._current is None:
            self._advance()
        else:
            self._watch_reading()

    def eof_received(self) -> bool:
        """Return whether the connection stays open because an answer is still due."""
        self._eof = True
        if self._closing:
            return False
        request = self._current
        if request is None:
            owed = bool(self._reader.requests)
        else:
            owed = request.outlives_eof or (self._task is None and not request.is_brief)
        if not owed:
            self._cancel()
            self._close()
        return owed

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in progress and release what the connection held."""
        self._cancel()
        self._release()

    def _release(self) -> None:
        """Give back what the connection holds of the server."""
        self._closing = True
        self._shared.unsent.note(self, 0)
        self._timeouts.stop()
        if self._held is not None:
            self._held.cancel()
        self._reader.close()
        if self._admitted:
            self._shared.admitted_count -= 1
        self._shared.leave(self)

    def pause_writing(self) -> None:
        """Start no request: the client reads its answer too slowly."""
        self._writer.paused = True
        self._note_unsent(self._transport.get_write_buffer_size())
        if not self._closing:
            self._timeouts.expect_taken(self._shared.limits.write_timeout_ms)

    def resume_writing(self) -> None:
        """Continue the stream, or start the next request."""
        self._shared.unsent.note(self, 0)
        if self._closing:
            return
        self._timeouts.taken()
        self._writer.resume()
        if self._current is None:
            self._advance()

    def drain(self) -> None:
        """Close now if no request is in progress, else after its answer."""
        if self._current is None and not self._closing:
            self._close()

    @property
    def current(self) -> Request | None:
        """The request that is being answered."""
        return self._current

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task of the current request, or ``None``."""
        return self._task

    def is_stalled(self) -> bool:
        """Return whether the client has taken nothing of its answer for ``STALLED_S``."""
        return self._timeouts.stalled_s() >= STALLED_S

    def _note_unsent(self, size_bytes: int) -> None:
        if self._writer.paused:
            self._shared.unsent.note(self, size_bytes)

    def abort(self) -> None:
        """Close the connection at once and cancel its task."""
        self._closing = True
        self._cancel()
        self._transport.abort()

    def _advance(self) -> None:
        """Answer waiting requests until one needs a task or the client stops reading."""
        reader = self._reader
        while self._current is None and not self._closing and not self._writer.paused:
            if reader.requests:
                self._handle(reader.requests.popleft())
            elif reader.error is not None:
                if reader.pause_s:
                    self._hold_refusal()
                    break
                self._refuse(reader.error)
            else:
                if reader.unread or self._held is not None:
                    # One read may hold thousands of requests: yield to other connections.
                    self._loop.call_soon(self._resume_reading)
                elif reader.wants_continue:
                    reader.wants_continue = False
                    self._transport.write(CONTINUE)
                break
        if not self._closing:
            self._watch_reading()

    def _handle(self, request: Request) -> None:
        """Call the handler with a request; write its answer, or start a task for it."""
        shared = self._shared
        shared.requests_total += 1
        if request.upgrade is not None:
            self._become(request.upgrade, request.headers["upgrade"])
            return
        self._current = request
        request.certificate = self.certificate
        request.is_local = self.is_local
        answer: Response | Awaitable[Response]
        started_s = perf_counter()
        try:
            answer = shared.handler(request)
        except Exception as error:
            answer = shared.failure(error, request)
        if isinstance(answer, Response):
            if answer.stream is None:
                self._writer.write(answer, self._connection_line(request), request)
                self._finish(request)
                shared.loop_watch.end_step(request, started_s)
                return
        elif request.is_brief and isinstance(answer, CoroutineType):
            self._answer_briefly(answer, request)
            return
        elif isinstance(answer, DeferredAnswer):
            answer.then(partial(self._answer_later, request))
            shared.loop_watch.end_step(request, started_s)
            if self._eof:
                self._close_at_eof(request)
            return
        else:
            self._unstarted = answer
        steps = TimedSteps(self._serve(answer, request), shared.loop_watch, request)
        self._task = self._loop.create_task(steps)
        if self._eof and not request.outlives_eof:
            self._cancel()
            self._close()

    def _become(self, create_protocol: CreateProtocol, name: str) -> None:
        """Leave the connection to another protocol; it is none of the server's any more."""
        transport = self._transport
        transport.write(SWITCHING_PROTOCOLS % name.encode("ascii"))
        self._release()
        protocol = create_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def _answer_briefly(self, answer: Coroutine[Any, Any, Response], request: Request) -> None:
        """Run a handler without a task."""
        is_first_step = True

        def on_answer(response: Response | None, error: BaseException | None) -> None:
            if self._write_answer(request, response, error) and not is_first_step:
                self._advance()

        end_step = partial(self._shared.loop_watch.end_step, request)
        BriefAnswer(answer, self._loop, on_answer, end_step).step()
        is_first_step = False
        if self._eof:
            self._close_at_eof(request)

    def _answer_later(
        self, request: Request, response: Response | None, error: BaseException | None
    ) -> None:
        """Write an answer that was deferred, and go on.

        The next request waits for the next turn: its handler must not run within the work that gave
        the answer, which may not be complete.
        """
        started_s = perf_counter()
        if self._write_answer(request, response, error):
            if self._reader.requests:
                self._loop.call_soon(self._advance)
            else:
                self._advance()
        self._shared.loop_watch.end_step(request, started_s)

    def _write_answer(
        self, request: Request, response: Response | None, error: BaseException | None
    ) -> bool:
        """Write a whole answer; return False if the client is gone."""
        if self._transport.is_closing():
            if response is not None and response.on_refused is not None:
                response.on_refused()
            return False
        if response is None or response.stream is not None:
            error = error or TypeError("a brief answer streams")
            response = self._shared.failure(error, request)
        self._writer.write(response, self._connection_line(request), request)
        self._finish(request)
        return True

    def _close_at_eof(self, request: Request) -> None:
        """Close after the client has ended, unless its request has to be finished."""
        if not request.outlives_eof and self._current is request:
            self._close()

    async def _serve(self, answer: Response | Awaitable[Response], request: Request) -> None:
        """Await the answer and write it. This is the body of a request's task."""
        self._unstarted = None
        shared = self._shared
        try:
            response = answer if isinstance(answer, Response) else await answer
            if not isinstance(response, Response):
                raise TypeError(f"the handler answered with a {type(response).__name__}")
        except asyncio.CancelledError as error:
            if self._is_cancelled():
                raise
            response = shared.failure(error, request)
        except Exception as error:
            response = shared.failure(error, request)
        items = response.stream
        if self._task is None:  # cancelled, and the handler ignored it
            if isinstance(items, OwnedStream):
                await items.aclose()
            return  # the client is gone
        if items is None:
            self._writer.write(response, self._connection_line(request), request)
        else:
            if request.is_http_10:
                request.keep_alive = False  # such a stream ends with the connection
            line = self._connection_line(request)
            whole = False
            try:
                whole = await self._writer.write_stream(response, items, line, request)
            finally:
                if not whole:
                    # Without the last chunk the client knows that the answer is incomplete.
                    self._closing = True
                    self._transport.abort()
            if not whole:
                return
        self._finish(request)
        self._advance()

    def _is_cancelled(self) -> bool:
        """Return whether the running task was cancelled, rather than what it awaited."""
        task = self._task
        if task is None:
            return True
        if not task.cancelling():
            return False
        # Something else cancels the task, as a stopping event loop does: no answer follows.
        self._closing = True
        self._transport.abort()
        return True

    def _finish(self, request: Request) -> None:
        """End a request whose answer is written."""
        self._current = None
        self._task = None
        reader = self._reader
        reader.release(len(request.body))
        is_last = self._eof and not reader.requests and reader.error is None
        if is_last or not request.keep_alive or self._shared.draining:
            self._close()

    def _connection_line(self, request: Request) -> bytes:
        if not request.keep_alive or self._shared.draining:
            return CLOSE
        return KEEP_ALIVE if request.is_http_10 else b""

    def _cancel(self) -> None:
        """Cancel the task, if one runs."""
        task = self._task
        if task is None:
            return
        self._task = None
        task.cancel()
        # A task cancelled before its first step never awaits the handler's awaitable.
        unstarted = self._unstarted
        if isinstance(unstarted, CoroutineType):
            unstarted.close()
        elif isinstance(unstarted, asyncio.Future):
            unstarted.cancel()

    def _hold_refusal(self) -> None:
        """Refuse what is not served in a moment; nothing is read until then."""
        if self._held is None:
            self._held = self._loop.call_later(self._reader.pause_s, self._refuse_held)

    def _refuse_held(self) -> None:
        error = self._reader.error
        if not self._closing and error is not None:
            self._refuse(error)

    def _refuse(self, error: GoqError) -> None:
        """Answer a request or connection that is not served, then close."""
        answer = self._shared.failure(error, None, self._reader.refused_headers)
        self._writer.write(answer, CLOSE, None)
        if self._eof or not self._transport.can_write_eof():
            self._close()
            return
        self._closing = True
        self._timeouts.expect_bytes(None, 0)
        self._timeouts.expect_taken(LINGER_MS)
        self._transport.write_eof()
        if self._reading_paused:
            self._transport.resume_reading()

    def _close(self) -> None:
        """Close when the written bytes have been sent."""
        self._closing = True
        self._timeouts.expect_bytes(None, 0)
        self._timeouts.expect_taken(self._shared.limits.write_timeout_ms)
        self._transport.close()

    def _watch_reading(self) -> None:
        """Pause or resume input, and set the deadline for the client's next bytes."""
        reader = self._reader
        if self._is_stalled() is not self._reading_paused:
            self._reading_paused = not self._reading_paused
            if self._reading_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        phase: Phase | None = reader.phase
        if self._reading_paused or (
            phase is Phase.IDLE and (self._current is not None or self._writer.paused)
        ):
            phase = None
        timeouts = self._timeouts
        if phase is not timeouts.phase or reader.begun_count != timeouts.request_number:
            timeouts.expect_bytes(phase, reader.begun_count)

    def _is_stalled(self) -> bool:
        """Whether input must pause: the maximum of requests is waiting, or a refusal."""
        reader = self._reader
        return (
            bool(reader.unread)
            or len(reader.requests) >= self._shared.limits.pipeline_requests_max
            or self._held is not None
        )

    def _resume_reading(self) -> None:
        """Parse the input that was held back, once the requests before it are answered."""
        if self._current is None and not self._closing:
            self._reader.resume()
            self._advance()

    def _reading_expired(self) -> None:
        if self._reader.phase is Phase.IDLE:
            self._close()
            return
        self._reader.time_out()
        if self._current is None:
            self._advance()


def _peer_name(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return ""
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_local(transport: asyncio.Transport) -> bool:
    """Return whether the other end is on this machine: at a loopback address, or at this end's own.

    No other machine can hold a TCP connection from the address that it leads to.
    """
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not isinstance(peer, tuple) or not isinstance(own, tuple):
        return False
    return peer[0] == own[0] or ip_address(peer[0]).is_loopback
