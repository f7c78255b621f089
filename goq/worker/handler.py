"""One message of a worker: decoded, handled by the function, and settled by how that ended.

Whatever a function raises settles its message. Where that fails, the lease is not extended any
more, and the message comes again when it ends.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from goq import limits
from goq.client._sync.consume.received_message import ReceivedMessage
from goq.client.tracing.process_span import is_traced, process_span
from goq.errors import GoqError
from goq.worker.event_loop import EventLoopThread
from goq.worker.function import WorkerFunction

_log = logging.getLogger("goq.worker")


class _Undecodable(Exception):
    """The value is not what the function takes."""


class Handler:
    """Handles the messages of one worker, from many threads.

    ``on_exit`` gets a ``SystemExit`` or ``KeyboardInterrupt`` that a function raised, once its
    message is settled.
    """

    def __init__(
        self,
        function: WorkerFunction,
        event_loop: EventLoopThread,
        on_exit: Callable[[BaseException], None],
    ) -> None:
        self._function = function
        self._event_loop = event_loop
        self._on_exit = on_exit

    def handle(self, message: ReceivedMessage) -> None:
        """Handle and settle a message; never raises."""
        error: BaseException | None = None
        message.is_given_up_with_lease = True  # or a thread would wait for a node that is gone
        try:
            try:
                self._call(message)
            except BaseException as raised:
                error = raised
            self._settle(message, error)
        except GoqError as failure:
            _log.warning("%s was not settled: %s", message.id, failure.detail)
        except BaseException:
            _log.error("%s was not settled", message.id, exc_info=True)
        finally:
            message.settled = True  # or its lease would be extended for as long as the loop lasts
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._on_exit(error)

    def _call(self, message: ReceivedMessage) -> None:
        try:
            payload = self._function.parse(message)
        except (ValueError, msgspec.MsgspecError) as error:
            raise _Undecodable(f"does not decode: {_text_of(error)}") from error
        with _span(message):
            result = self._function.call(payload, message)
            if inspect.isawaitable(result):
                result = self._event_loop.run(result)
            if inspect.isgenerator(result) or inspect.isasyncgen(result):
                raise TypeError(f"{self._function.name} returned a generator, which nothing runs")

    def _settle(self, message: ReceivedMessage, error: BaseException | None) -> None:
        if error is None:
            if not message.settled:  # else the function has done it
                message.ack()
            return
        if isinstance(error, _Undecodable):
            _log.error("%s is rejected: %s", message.id, error)
            message.reject(str(error))
        elif isinstance(error, self._function.options.reject_on):
            _log.error("%s is rejected", message.id, exc_info=error)
            message.reject(_reason_of(error))
        else:
            _log.warning("%s failed, attempt %d", message.id, message.attempt, exc_info=error)
            message.nack(self._function.options.retry, _reason_of(error))


def _span(message: ReceivedMessage) -> AbstractContextManager[None]:
    return process_span(message) if is_traced() else nullcontext()


def _reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text_of(error)}"


def _text_of(error: BaseException) -> str:
    """Return the text of an error as the node takes it: some errors have none, or no UTF-8."""
    try:
        text = str(error)[: limits.REASON_CHARS_MAX]
    except BaseException as failure:
        text = f"its text raised {type(failure).__name__}"
    return text.encode(errors="backslashreplace").decode()
