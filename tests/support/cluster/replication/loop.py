"""An event loop whose time is simulated: nothing waits, and a seed decides what takes how long."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from random import Random
from typing import Any, TypeVar, cast

from tests.support.storage.disk import SimulatedCrash

T = TypeVar("T")

HOME: contextvars.ContextVar[object] = contextvars.ContextVar("home", default=None)
"""What the running code belongs to, such as one life of a node."""


class _NoSelector(selectors.BaseSelector):
    """Selects nothing; what would be waited for is over at once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, int(fileobj), events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits for something that never happens")
        if timeout > 0:
            self.now_s += timeout
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """Its time passes only when there is nothing to do at the moment."""

    def __init__(self) -> None:
        self._no_selector = _NoSelector()
        super().__init__(self._no_selector)
        self.homes: dict[object, dict[asyncio.Task[Any], None]] = {}  # in the order they began
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_exception)
        self.unexpected: list[str] = []

    def time(self) -> float:
        return self._no_selector.now_s

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""

    def _make_task(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        context = options.get("context")
        home = HOME.get() if context is None else context.get(HOME)
        if home is not None:
            tasks = self.homes.setdefault(home, {})
            tasks[task] = None
            task.add_done_callback(lambda ended: tasks.pop(ended, None))
        return task

    def end_home(self, home: object) -> None:
        """Stop everything that runs for one home."""
        for task in list(self.homes.pop(home, ())):
            task.cancel()

    def _note_exception(self, _loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, SimulatedCrash):
            self.unexpected.append(f"{context.get('message')}: {error!r}")


def run_simulated(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as ``asyncio.run`` does, in simulated time: each sleep is over at once.

    Fails if a callback or a task failed unnoticed.
    """
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        result = runner.run(work)
        assert cast(SimLoop, runner.get_loop()).unexpected == []
        return result


class SimExecutor(Executor):
    """Runs work on the loop's own thread, each piece some simulated time later.

    Nothing runs any more once ``is_dead`` says so. ``late_s`` is what each piece takes besides.
    """

    MEAN_S = 0.001

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        is_dead: Callable[[], bool],
        late_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._loop = loop
        self._random = random
        self._is_dead = is_dead
        self._late_s = late_s

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            if self._is_dead() or not done.set_running_or_notify_cancel():
                return
            try:
                result = work(*args, **kwargs)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        delay_s = self._random.expovariate(1 / self.MEAN_S)
        self._loop.call_later(delay_s + self._late_s(), run)
        return done
