"""The workers of ``goq consume --coproc``: processes that live long and answer each record.

A message goes to the worker that has the fewest records, and messages of one key to one worker. A
worker that ends while the consumer goes on is started again. Several ends in a row without an
answer end the consumer: then the command is at fault, not a message.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from goq.errors import UsageError
from goq_cli.settlement.answer import UnfitRecord
from goq_cli.settlement.coproc_process import CoprocProcess
from goq_cli.settlement.settlements import RELEASE, Outcome, Settlements
from goq_cli.settlement.shell_command import NOT_RUN

if TYPE_CHECKING:
    from goq.client import Client, ReceivedMessage
    from goq_cli.interrupts import Interrupts

_SILENT_ENDS_MAX: Final = 5
_CHECK_S: Final = 0.05
_SILENCE_S: Final = 1.0


class Coproc:
    """Gives messages to ``jobs`` workers, and settles them by their answers."""

    keeps_leases = True
    """Whether messages are settled later, so that their leases must be extended."""

    def __init__(
        self,
        client: Client,
        command: str,
        jobs: int,
        retry_delay: str,
        record: Callable[[ReceivedMessage], bytes],
        interrupts: Interrupts,
    ) -> None:
        self._command = command
        self._retry_delay = retry_delay
        self._record = record
        self._interrupts = interrupts
        self._settlements = Settlements(client)
        self._changed = threading.Condition()
        self._workers: list[CoprocProcess | None] = [None] * jobs
        self._silent_ends = 0
        self._has_ended = False

    @property
    def has_failed(self) -> bool:
        """Whether a worker or a message failed."""
        return self._has_ended or self._settlements.has_failed

    def __enter__(self) -> Coproc:
        self._settlements.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """End the workers, when they have answered; a second interrupt kills them."""
        try:
            if not self._interrupts.is_repeated:
                self.settle_all()
                self._close()
        finally:
            for worker in self._workers:
                if worker is not None:
                    worker.kill()
                    worker.join()
            self._settlements.finish()
            self._settlements.close()

    def take(self, message: ReceivedMessage) -> None:
        """Give a message to a worker; wait until one has room."""
        try:
            record = self._record(message)
        except UnfitRecord as error:
            self._say(f"{message.id}: {error}")
            failed = Outcome("nack", self._retry_delay, str(error))
            self._settlements.add([(message, failed)])
            return
        try:
            while not self._worker_for(message).send(message, record):
                pass
        except BaseException:
            self._settlements.add([(message, RELEASE)])
            raise

    def settle(self) -> None:
        """Raise what prevents messages from being settled."""
        self._settlements.check()

    def settle_all(self) -> None:
        """Wait for all answers, and settle; close the stdin of workers that give none for 1 s."""
        was_interrupted = self._interrupts.is_pending
        running = [worker for worker in self._workers if worker is not None]
        answered, since_s = 0, time.monotonic()
        with self._changed:
            while any(worker.at_work for worker in running):
                if self._interrupts.is_pending != was_interrupted:
                    break
                if answered != (answered := sum(worker.answered for worker in running)):
                    since_s = time.monotonic()
                if time.monotonic() - since_s >= _SILENCE_S:
                    for worker in running:
                        worker.close()
                self._changed.wait(_CHECK_S)
        self._settlements.finish()
        for number, ended in enumerate(self._workers):
            if ended is not None and ended.end is not None:
                self._forget(number, ended)

    def _close(self) -> None:
        """Close the workers' stdin; wait until they have ended, or for a second interrupt."""
        running = [worker for worker in self._workers if worker is not None]
        was_interrupted = self._interrupts.is_pending
        for worker in running:
            worker.close()
        with self._changed:
            while any(worker.end is None for worker in running):
                if self._interrupts.is_pending != was_interrupted:
                    break
                self._changed.wait(_CHECK_S)

    def _worker_for(self, message: ReceivedMessage) -> CoprocProcess:
        """Return a worker with room; wait for it."""
        while True:
            self._settlements.check()
            self._interrupts.check()
            number = self._choose(message)
            worker = self._workers[number] or self._start(number)
            if worker.has_room:
                return worker
            with self._changed:
                if worker.end is None and not worker.has_room:
                    self._changed.wait(_CHECK_S)
            if worker.end is not None:
                self._forget(number, worker)

    def _choose(self, message: ReceivedMessage) -> int:
        if message.key is not None:
            return zlib.crc32(message.key) % len(self._workers)
        loads = [0 if worker is None else worker.at_work for worker in self._workers]
        return loads.index(min(loads))

    def _start(self, number: int) -> CoprocProcess:
        worker = CoprocProcess(
            self._command, self._retry_delay, self._settlements.add, self._changed
        )
        self._workers[number] = worker
        return worker

    def _forget(self, number: int, ended: CoprocProcess) -> None:
        """Forget a worker that has ended; raise if the command is at fault."""
        self._workers[number] = None
        if ended.exit_code == 0 and not ended.has_failed:
            return
        self._has_ended = True
        self._silent_ends = 0 if ended.answered else self._silent_ends + 1
        is_not_run = ended.exit_code in NOT_RUN and not ended.answered
        if is_not_run or self._silent_ends >= _SILENT_ENDS_MAX:
            raise UsageError(f"--coproc: {ended.end}, and answered nothing: {self._command}")
        self._say(f"--coproc: {ended.end}")

    def _say(self, text: str) -> None:
        sys.stderr.write(f"goq: {text}\n")
        sys.stderr.flush()
