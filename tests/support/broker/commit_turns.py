"""A commit turn over logs and a journal that only note what is done with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

from goq.broker.log.commit_turn import CommitTurn, JournalWrite
from goq.clock import ManualClock
from tests.support.broker.harness import run


class FakeLog:
    """A log that notes what is done with its batches; ``faults`` are raised by operation."""

    def __init__(self, name: str, steps: list[str]) -> None:
        self.name, self.steps = name, steps
        self.failed: str | None = None
        self.faults: dict[str, Exception] = {}

    def _note(self, step: str) -> None:
        if step in self.faults:
            raise self.faults[step]
        self.steps.append(f"{step} {self.name}")

    def append(self, _batch: object) -> str:
        self._note("append")
        return self.name

    def on_journaled(self, _batch: object, mark: int) -> None:
        self._note(f"journaled {mark}")

    def finish_write(self, _batch: object) -> None:
        self._note("sync")


class FakeJournal:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.records: list[list[str]] = []
        self.has_room = True
        self.is_busy = False
        self.write_ms = 0
        self.fault: Exception | None = None

    def has_room_for(self, _size_bytes: int) -> bool:
        return self.has_room

    def commit(self, entries: list[str]) -> int | None:
        if self.fault is not None:
            raise self.fault
        self.clock.advance_ms(self.write_ms)
        if not self.has_room:
            return None
        self.records.append(entries)
        return len(self.records)


class HeldThread(Executor):
    """Runs what it is given when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None], /, *_: Any, **__: Any) -> Future[Any]:
        self.jobs.append(work)
        return Future()

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


class Member:
    """The writer of a log with one batch; ``then`` has others follow what it stages."""

    def __init__(
        self, node: Node, name: str, size_bytes: int = 100, *, stages: bool = False
    ) -> None:
        self.node, self.name = node, name
        self.log = FakeLog(name, node.steps)
        self.queued_bytes = size_bytes
        self.stages = stages
        self.follows: FakeLog | None = None
        self.then: Callable[[], None] = lambda: None
        self.has_batch = True

    def start(self) -> JournalWrite | None:
        if not self.has_batch:
            return None
        batch: Any = SimpleNamespace(size_bytes=self.queued_bytes)
        log: Any = self.log
        follows: Any = self.follows
        return JournalWrite(log, batch, self._finish, self._stage, follows)

    def _stage(self) -> None:
        self.node.steps.append(f"stage {self.name}")
        self.then()

    def _finish(self, error: Exception | None) -> None:
        self.node.finished[self.name] = error


class Node:
    def __init__(self) -> None:
        self.steps: list[str] = []
        self.finished: dict[str, Exception | None] = {}
        self.problems: list[str] = []
        clock = ManualClock()
        self.journal = FakeJournal(clock)
        self.thread = HeldThread()
        journal: Any = self.journal
        self.turn = CommitTurn(journal, self.thread, clock)
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: self.problems.append(str(context["exception"]))
        )

    async def write(self, *members: Member) -> None:
        """Have logs join one turn, and wait for its end, but for what a thread does."""
        for member in members:
            self.turn.append_count += 1
            self.turn.join(member)
        for _ in range(20):
            await asyncio.sleep(0)


def on_node(test: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Node())

    run(main())
