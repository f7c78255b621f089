"""The watchdog of the event loop: the longest holds by route, and a log line for each long one.

While one step of a request runs, no other request, timer or replica of the node gets on. A step
lasts from one wait of its task to the next. Connections time each step of their requests. Other
work is not timed step by step: a timer that comes late shows that something held the loop, and the
steps of requests since its last run are subtracted. While the loop has little to do the timer
comes less often: its wakes were most of what a node took at rest.

A hold is remembered for one to two minutes, so each scrape of the metrics sees it. Holds of a
millisecond and more are counted by cause too: a slow step of a request, a write to the journal by
the loop itself, a collection of garbage (also within a step), or other work.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter, thread_time
from types import FrameType
from typing import Any, Final, NamedTuple, cast

from goq import limits
from goq.clock import beat_delay_s
from goq.histogram import Histogram
from goq.http.message import Request
from goq.log_throttle import LogThrottle

REQUEST: Final = "request"
JOURNAL: Final = "journal"
GARBAGE: Final = "garbage"
OTHER: Final = "other"
_TICK_S: Final = 0.1
_REST_TICK_S: Final = 0.5
_REST_CPU_SHARE: Final = 0.03  # of a core, for a loop at rest
_KEPT_S: Final = 60.0
_LOG_PERIOD_S: Final = 10.0
_log: Final = logging.getLogger("goq.http")


class Holder(NamedTuple):
    """The work that held the loop: requests of a method and route, or everything else."""

    method: str
    route: str


BACKGROUND: Final = Holder("", "(background)")
JOURNAL_WRITE: Final = Holder("", "(journal)")


class _Armed(NamedTuple):
    """When the timer was armed, for how long, and the loop's time for steps and of CPU by then."""

    at_s: float
    delay_s: float
    held_s: float
    cpu_s: float


class LoopWatch:
    """Times the holds of one event loop."""

    def __init__(self) -> None:
        self.held_s = 0.0
        """The sum of all steps that were timed."""
        self.holds = {cause: Histogram() for cause in (REQUEST, JOURNAL, GARBAGE, OTHER)}
        """The holds of ``limits.HOLD_COUNTED_S`` and more, by cause."""
        self._garbage_since_s = 0.0
        self._longest_s: dict[Holder, float] = {}
        self._earlier_s: dict[Holder, float] = {}
        self._since_s = perf_counter()
        self._throttle = LogThrottle(_LOG_PERIOD_S)
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to watch the work of a loop that belongs to no request."""
        gc.callbacks.append(self._on_garbage)
        self._arm(loop)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._on_garbage)

    def end_step(self, request: Request, started_s: float) -> None:
        """Record a step of a request, which began at a time of ``perf_counter``."""
        held_s = perf_counter() - started_s
        self.held_s += held_s
        if held_s >= limits.HOLD_COUNTED_S:
            self._note_step(request, held_s)

    def _note_step(self, request: Request, seconds: float) -> None:
        self.holds[REQUEST].observe(seconds)
        if seconds < limits.HOLD_NOTED_S:
            return
        method = request.method if request.route else ""
        self.note(Holder(method, request.route or "(none)"), seconds)

    def note_journal(self, seconds: float) -> None:
        """Record a write of the journal by the loop itself."""
        self.held_s += seconds
        if seconds >= limits.HOLD_COUNTED_S:
            self.holds[JOURNAL].observe(seconds)
        if seconds >= limits.HOLD_NOTED_S:
            self.note(JOURNAL_WRITE, seconds)

    def _on_garbage(self, phase: str, _info: dict[str, int]) -> None:
        now_s = perf_counter()
        if phase == "start":
            self._garbage_since_s = now_s
        elif now_s - self._garbage_since_s >= limits.HOLD_COUNTED_S:
            self.holds[GARBAGE].observe(now_s - self._garbage_since_s)

    def note(self, holder: Holder, seconds: float) -> None:
        """Record a hold; log a long one, unless the same work was logged a moment ago."""
        now_s = perf_counter()
        self._forget(now_s)
        self._longest_s[holder] = max(seconds, self._longest_s.get(holder, 0.0))
        if seconds < limits.HOLD_LOGGED_S:
            return
        left_out = self._throttle.admit(holder, now_s)
        if left_out is not None:
            _log.warning(
                "%s held the event loop for %.2f s: all other requests waited%s",
                " ".join(holder).strip(),
                seconds,
                f" ({left_out} more before)" if left_out else "",
            )

    def longest(self) -> dict[Holder, float]:
        """Return the longest hold in seconds of each kind of work in the last minutes."""
        self._forget(perf_counter())
        longest_s = dict(self._earlier_s)
        for holder, seconds in self._longest_s.items():
            longest_s[holder] = max(seconds, longest_s.get(holder, 0.0))
        return longest_s

    def _forget(self, now_s: float) -> None:
        """Forget what is older than two periods."""
        age_s = now_s - self._since_s
        if age_s >= _KEPT_S:
            self._earlier_s = self._longest_s if age_s < 2 * _KEPT_S else {}
            self._longest_s, self._since_s = {}, now_s

    def _arm(self, loop: asyncio.AbstractEventLoop, *, is_at_rest: bool = False) -> None:
        delay_s = beat_delay_s(loop.time(), _REST_TICK_S if is_at_rest else _TICK_S)
        armed = _Armed(perf_counter(), delay_s, self.held_s, thread_time())
        self._timer = loop.call_later(delay_s, self._tick, loop, armed)

    def _tick(self, loop: asyncio.AbstractEventLoop, armed: _Armed) -> None:
        passed_s = perf_counter() - armed.at_s
        late_s = passed_s - armed.delay_s - (self.held_s - armed.held_s)
        if late_s >= limits.HOLD_COUNTED_S:
            self.holds[OTHER].observe(late_s)
        if late_s >= limits.HOLD_NOTED_S:
            self.note(BACKGROUND, late_s)
        cpu_s = thread_time() - armed.cpu_s
        is_idle = cpu_s < _REST_CPU_SHARE * passed_s
        self._arm(loop, is_at_rest=is_idle and late_s < limits.HOLD_LOGGED_S)


class TimedSteps(Coroutine[Any, Any, None]):
    """The coroutine of a request, with each of its steps timed."""

    __slots__ = ("_coroutine", "_request", "_watch")

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], watch: LoopWatch, request: Request
    ) -> None:
        self._coroutine = coroutine
        self._watch = watch
        self._request = request

    @property
    def cr_frame(self) -> FrameType | None:
        """The frame that the task is in, for the stacks of tasks."""
        return cast(FrameType | None, getattr(self._coroutine, "cr_frame", None))

    def send(self, value: Any) -> Any:
        """Run one step."""
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Run one step, which begins with an error."""
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        """End the coroutine where it waits."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()

    def _step(self, go_on: Callable[..., Any], *arguments: Any) -> Any:
        started_s = perf_counter()
        try:
            return go_on(*arguments)
        finally:
            self._watch.end_step(self._request, started_s)
