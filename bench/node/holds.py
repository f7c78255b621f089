"""``python -m bench.node.holds [--only NAME] [--profile]``: how long requests hold the event loop.

The requests are those of ``bench.node.bounds``, each the largest of its route. The node runs in a
thread of this process, and each callback of its loop is timed by the CPU time of that thread, as is
each pass: all callbacks that were due together. So other work on the machine hardly counts, nor
does a wait for the disk. Slices of work are cut by CPU time, too. Collections of garbage are
subtracted: this process has the heap of the client as well. With ``--profile`` the functions of the
longest callback are printed; the profiler makes each call longer.

Exit 1 if a pass of a request held the loop for longer than the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import asyncio.base_events
import asyncio.selector_events
import cProfile
import gc
import pstats
import sys
import tempfile
import threading
import time
from asyncio.events import Handle
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from bench.harness.servers import free_port
from bench.node.bounds import SCENARIOS, Caller, Work
from goq import clock, embedded
from goq.process.heap import set_up_heap

_GOAL_MS = 20
_REST_S = 0.3  # for what a request leaves behind
_PROFILE_LINES = 25


class Hold(NamedTuple):
    """The longest callback, and the longest pass of an event loop, in CPU time."""

    callback_ms: float = 0.0
    pass_ms: float = 0.0
    callbacks: int = 0
    """How many ran in that pass."""
    name: str = ""
    """Of the longest callback."""
    profile: cProfile.Profile | None = None


class Holds:
    """The longest holds of the event loop of one thread."""

    def __init__(self, *, is_profiled: bool = False) -> None:
        self._longest = Hold()
        self._is_profiled = is_profiled
        self._count = 0
        self._naming_s = 0.0
        self._garbage_s = 0.0
        self._garbage_since_s = 0.0
        self._run = Handle._run
        watch = self

        def run(handle: Handle) -> Any:
            return watch._time(handle)

        Handle._run = run  # type: ignore[assignment, method-assign]
        loop = asyncio.base_events.BaseEventLoop
        self._run_once = loop._run_once  # type: ignore[attr-defined]

        def run_once(loop: asyncio.AbstractEventLoop) -> None:
            watch._time_pass(loop)

        loop._run_once = run_once  # type: ignore[attr-defined]
        gc.callbacks.append(self._on_garbage)

    def _time(self, handle: Handle) -> Any:
        profile = cProfile.Profile(time.thread_time) if self._is_profiled else None
        began_s, garbage_s = time.thread_time(), self._garbage_s
        try:
            return self._run(handle) if profile is None else profile.runcall(self._run, handle)
        finally:
            ended_s = time.thread_time()
            held_ms = 1000 * (ended_s - began_s - (self._garbage_s - garbage_s))
            self._count += 1
            if held_ms > self._longest.callback_ms:
                self._longest = self._longest._replace(
                    callback_ms=held_ms, name=_named(handle), profile=profile
                )
                self._naming_s += time.thread_time() - ended_s

    def _time_pass(self, loop: asyncio.AbstractEventLoop) -> None:
        began_s, garbage_s = time.thread_time(), self._garbage_s
        self._count, self._naming_s = 0, 0.0
        try:
            self._run_once(loop)
        finally:
            left_out_s = self._garbage_s - garbage_s + self._naming_s
            held_ms = 1000 * (time.thread_time() - began_s - left_out_s)
            if held_ms > self._longest.pass_ms:
                self._longest = self._longest._replace(pass_ms=held_ms, callbacks=self._count)

    def _on_garbage(self, phase: str, _info: dict[str, int]) -> None:
        if threading.current_thread() is threading.main_thread():
            return
        if phase == "start":
            self._garbage_since_s = time.thread_time()
        else:
            self._garbage_s += time.thread_time() - self._garbage_since_s

    def take(self) -> Hold:
        """Return the longest hold, and forget it."""
        found, self._longest = self._longest, Hold()
        return found


def _write_parts(transport: asyncio.WriteTransport, parts: Iterable[bytes]) -> None:
    """Write parts one by one, as uvloop does; asyncio of Python 3.11 copies them thrice."""
    for part in parts:
        transport.write(part)


def _named(handle: Handle) -> str:
    """Return the callback, of a task the coroutine that goes on in it."""
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    return repr(task.get_coro()) if isinstance(task, asyncio.Task) else repr(handle)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.node.holds", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="begins so; repeatable")
    parser.add_argument("--profile", action="store_true", help="print the longest callback's")
    arguments = parser.parse_args()
    set_up_heap()  # as the process of a node does
    slices = SimpleNamespace(**{name: getattr(time, name) for name in dir(time)})
    slices.perf_counter = time.thread_time
    clock.time = slices  # type: ignore[assignment, attr-defined]
    # uvloop has no callbacks to time
    embedded.new_event_loop = asyncio.new_event_loop  # type: ignore[attr-defined]
    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    transport.writelines = _write_parts
    holds = Holds(is_profiled=arguments.profile)
    sqs_port = free_port()
    settings = {"defaults.topic.fsync": "never", "sqs.listen": f"127.0.0.1:{sqs_port}"}
    with (
        tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as folder,
        embedded.Node(Path(folder) / "goq", settings=settings) as node,
    ):
        work = Work(Caller(int(node.url.rpartition(":")[2])), sqs_port)
        return _run(work, holds, arguments.only)


def _run(work: Work, holds: Holds, only: list[str] | None) -> int:
    assert holds.take().callback_ms, "the loop's callbacks are not timed"
    worst_ms = 0.0
    print(f"{'request':30} {'status':>6} {'callback':>9} {'pass':>9}  ms of CPU")
    for name, prepare in SCENARIOS.items():
        if only is not None and not any(name.startswith(wanted) for wanted in only):
            continue
        request = prepare(work)
        time.sleep(_REST_S)
        prepared = holds.take()
        if prepared.pass_ms > _GOAL_MS:
            _print(f"{name}, prepared", "", prepared)
        answer = request()
        time.sleep(_REST_S)
        hold = holds.take()
        worst_ms = max(worst_ms, hold.pass_ms)
        _print(name, str(answer.status), hold)
    return int(worst_ms > _GOAL_MS)


def _print(name: str, status: str, hold: Hold) -> None:
    line = f"{name:30} {status:>6} {hold.callback_ms:9.1f} {hold.pass_ms:9.1f}"
    print(f"{line}  of {hold.callbacks}; longest: {hold.name[:100]}", flush=True)
    if hold.profile is not None:
        pstats.Stats(hold.profile).sort_stats("tottime").print_stats(_PROFILE_LINES)


if __name__ == "__main__":
    sys.exit(main())
