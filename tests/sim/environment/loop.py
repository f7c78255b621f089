"""The simulated event loop, with processes on it that may stand still and end at once."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from typing import Any

from tests.support.cluster.replication.loop import HOME, SimLoop

_STEP_S = 1e-6
_STEPS_AT_ONE_MOMENT_MAX = 200_000


class Home:
    """What code runs for, as a process; nothing of it runs while it is held, or once it is dead."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_held = False
        self.held: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(HOME.set, self)


class ProcessLoop(SimLoop):
    """A ``SimLoop`` that asks of each callback whose it is."""

    def __init__(self) -> None:
        super().__init__()
        self.life_s_max = 120.0
        self.runs_all = False
        """Whether the dead run too, so that what they began comes to an end."""
        self._steps = 0

    def run_in_executor(self, executor: Any, work: Any, *arguments: Any) -> Any:
        """Run work of a process on its own threads, also that of ``asyncio.to_thread``."""
        home: Any = HOME.get()
        executor = executor or home.executor(home.random)
        return super().run_in_executor(executor, work, *arguments)

    def hold(self, home: Home) -> None:
        """Let a process stand still: what comes due waits, in order."""
        home.is_held = True

    def release(self, home: Home) -> None:
        """Let it go on."""
        home.is_held = False
        self._ready.extend(home.held)
        home.held = []

    def _run_once(self) -> None:
        ready: Any = self._ready
        scheduled: Any = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:
            if not scheduled:
                raise AssertionError("everything waits for something that never happens")
            self._no_selector.now_s = max(self._no_selector.now_s, scheduled[0]._when)
            self._steps = 0
        if self.time() > self.life_s_max and not self.runs_all:
            raise AssertionError("no life takes so long")
        self._no_selector.now_s += _STEP_S  # what waits for time to pass must not wait in vain
        now_s = self.time()
        while scheduled and scheduled[0]._when <= now_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self._run(handle)

    def _run(self, handle: Any) -> None:
        self._steps += 1
        if self._steps > _STEPS_AT_ONE_MOMENT_MAX:
            raise AssertionError(f"time does not pass: {handle!r}")
        home = handle._context.get(HOME)
        if home is not None and not self.runs_all:
            if home.is_dead:
                return
            if home.is_held:
                home.held.append(handle)
                return
        handle._run()
