"""``python -m bench.node.holds [--only NAME] [--profile]``: how long requests hold the event loop.

The requests are those of ``bench.node.bounds``, each the largest of its route. The node runs in a
thread of this process, and each callback of its loop is timed by the CPU time of that thread. So
other work on the machine hardly counts, nor does a wait for the disk. Slices of work are cut by CPU
time, too. Collections of garbage are subtracted: this process has the heap of the client as well.
With ``--profile`` the functions of the longest callback are printed; the profiler makes each call
longer.

Exit 1 if a request held the loop for longer than the goal.
"""

from __future__ import annotations

import argparse
import asyncio
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
from typing import Any

from bench.harness.servers import free_port
from bench.node.bounds import SCENARIOS, Caller, Work
from goq import clock, embedded
from goq.process.heap import set_up_heap

_GOAL_MS = 20
_REST_S = 0.3  # for what a request leaves behind
_PROFILE_LINES = 25


class Holds:
    """The longest callback of the event loop of one thread, in CPU time."""

    def __init__(self, *, is_profiled: bool = False) -> None:
        self.longest_s = 0.0
        self.callback = ""
        self.profile: cProfile.Profile | None = None
        self._is_profiled = is_profiled
        self._garbage_s = 0.0
        self._garbage_since_s = 0.0
        self._run = Handle._run
        watch = self

        def run(handle: Handle) -> Any:
            return watch._time(handle)

        Handle._run = run  # type: ignore[assignment, method-assign]
        gc.callbacks.append(self._on_garbage)

    def _time(self, handle: Handle) -> Any:
        profile = cProfile.Profile(time.thread_time) if self._is_profiled else None
        began_s, garbage_s = time.thread_time(), self._garbage_s
        try:
            return self._run(handle) if profile is None else profile.runcall(self._run, handle)
        finally:
            held_s = time.thread_time() - began_s - (self._garbage_s - garbage_s)
            if held_s > self.longest_s:
                self.longest_s, self.callback, self.profile = held_s, _named(handle), profile

    def _on_garbage(self, phase: str, _info: dict[str, int]) -> None:
        if threading.current_thread() is threading.main_thread():
            return
        if phase == "start":
            self._garbage_since_s = time.thread_time()
        else:
            self._garbage_s += time.thread_time() - self._garbage_since_s

    def take(self) -> tuple[float, str, cProfile.Profile | None]:
        """Return the longest hold in ms, its callback and its profile; forget them."""
        found = self.longest_s * 1000, self.callback, self.profile
        self.longest_s, self.callback, self.profile = 0.0, "", None
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
    assert holds.take()[0], "the loop's callbacks are not timed"
    worst_ms = 0.0
    print(f"{'request':30} {'status':>6} {'prepared':>9} {'longest hold':>13}  ms of CPU")
    for name, prepare in SCENARIOS.items():
        if only is not None and not any(name.startswith(wanted) for wanted in only):
            continue
        request = prepare(work)
        time.sleep(_REST_S)
        prepared_ms, callback, profile = holds.take()
        if prepared_ms > _GOAL_MS:
            print(f"{name + ', prepared':30} {'':6} {prepared_ms:9.1f} {'':13}  {callback[:120]}")
            _print_profile(profile)
        answer = request()
        time.sleep(_REST_S)
        hold_ms, callback, profile = holds.take()
        worst_ms = max(worst_ms, hold_ms)
        line = f"{name:30} {answer.status:6} {prepared_ms:9.1f} {hold_ms:13.1f}  {callback[:120]}"
        print(line, flush=True)
        _print_profile(profile)
    return int(worst_ms > _GOAL_MS)


def _print_profile(profile: cProfile.Profile | None) -> None:
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(_PROFILE_LINES)


if __name__ == "__main__":
    sys.exit(main())
