"""``python -m bench.holds [--only NAME]``: how long requests at their bounds hold the event loop.

The requests are those of ``bench.stalls``. The node runs in a thread of this process, and each
callback of its loop is timed by the CPU time of that thread. So other work on the machine hardly
counts, nor does a wait for the disk. Slices of work are cut by CPU time, too. Collections of
garbage are subtracted: this process has the heap of the client as well.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import threading
import time
from asyncio.events import Handle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.stalls import SCENARIOS, Caller, Work
from goq import clock, embedded

_REST_S = 0.3  # for what a request leaves behind


class Holds:
    """The longest callback of the event loop of one thread, in CPU time."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.callback = ""
        self._garbage_s = 0.0
        self._garbage_since_s = 0.0
        self._run = Handle._run
        watch = self

        def run(handle: Handle) -> Any:
            began_s, garbage_s = time.thread_time(), watch._garbage_s
            try:
                return watch._run(handle)
            finally:
                held_s = time.thread_time() - began_s - (watch._garbage_s - garbage_s)
                if held_s > watch.longest_s:
                    watch.longest_s, watch.callback = held_s, repr(handle)

        Handle._run = run  # type: ignore[method-assign]
        gc.callbacks.append(self._on_garbage)

    def _on_garbage(self, phase: str, _info: dict[str, int]) -> None:
        if threading.current_thread() is threading.main_thread():
            return
        if phase == "start":
            self._garbage_since_s = time.thread_time()
        else:
            self._garbage_s += time.thread_time() - self._garbage_since_s

    def reset(self) -> None:
        """Forget what was longest."""
        self.longest_s, self.callback = 0.0, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.holds", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="begins so; repeatable")
    only = parser.parse_args().only
    slices = SimpleNamespace(**{name: getattr(time, name) for name in dir(time)})
    slices.perf_counter = time.thread_time
    clock.time = slices  # type: ignore[assignment]
    embedded._new_event_loop = asyncio.new_event_loop  # uvloop has no callbacks to time
    holds = Holds()
    with (
        tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as folder,
        embedded.Node(Path(folder) / "goq", settings={"defaults.topic.fsync": "never"}) as node,
    ):
        work = Work(Caller(int(node.url.rpartition(":")[2])))
        print(f"{'request':30} {'status':>6} {'longest hold':>13}  ms of CPU")
        for name, prepare in SCENARIOS.items():
            if only is not None and not any(name.startswith(wanted) for wanted in only):
                continue
            request = prepare(work)
            holds.reset()
            answer = request()
            time.sleep(_REST_S)
            hold_ms = holds.longest_s * 1000
            print(f"{name:30} {answer.status:6} {hold_ms:13.1f}  {holds.callback[:80]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
