"""``python -m bench.node.stalls [--only NAME]``: how long requests at their bounds hold up others.

Each request is the largest that its route allows. Meanwhile another process asks ``/livez`` over
its own connection; its longest wait, and the node's own ``goq_loop_stall_seconds``, are printed.
A machine that is busy with other work adds to both.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from bench.harness.servers import GOQ, GoqNode, free_port
from bench.node.bounds import SCENARIOS, Caller, Work

_STALL = re.compile(r'^goq_loop_stall_seconds\{method="(.*?)",route="(.*?)"\} (\S+)$', re.M)
_PAUSE_S = 0.001


def _probe(port: int, asked: Connection) -> None:
    """Ask ``/livez`` all the time; answer with the longest wait since the last question."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    longest_s = 0.0
    while True:
        began_s = time.perf_counter()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        longest_s = max(longest_s, time.perf_counter() - began_s)
        if asked.poll(_PAUSE_S):
            if asked.recv() is None:
                return
            asked.send(longest_s)
            longest_s = 0.0


class Prober:
    """Another client, in a process of its own."""

    def __init__(self, port: int) -> None:
        self._pipe, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_probe, args=(port, other), daemon=True)
        self._process.start()
        self.longest_s()

    def longest_s(self) -> float:
        """Return the longest wait since the last call."""
        self._pipe.send(True)
        return float(self._pipe.recv())

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join(10)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.node.stalls", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="begins so; repeatable")
    arguments = parser.parse_args()
    sqs_port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as folder,
        GoqNode(
            Path(folder) / "goq",
            *("--sqs-listen", f"127.0.0.1:{sqs_port}"),
            program=(*_on_cores_apart(), GOQ),
        ) as node,
    ):
        _run(node, sqs_port, arguments.only)
    return 0


def _on_cores_apart() -> Sequence[str]:
    """Keep this process and its children to the first core; return what runs on the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return ()
    os.sched_setaffinity(0, {first})
    return ("taskset", "--cpu-list", ",".join(map(str, others)))


def _run(node: GoqNode, sqs_port: int, only: list[str] | None) -> None:
    work, prober = Work(Caller(node.port), sqs_port), Prober(node.port)
    held: dict[str, tuple[float, str]] = {}
    print(f"{'request':30} {'status':>6} {'took':>9} {'longest wait':>13}  ms")
    for name, prepare in SCENARIOS.items():
        if only is not None and not any(name.startswith(wanted) for wanted in only):
            continue
        try:
            request = prepare(work)
            prober.longest_s()
            answer = request()
        except Exception as error:
            print(f"{name:30} {type(error).__name__}: {error}"[:200], flush=True)
            continue
        wait_ms = prober.longest_s() * 1000
        line = f"{name:30} {answer.status:6} {answer.seconds * 1000:9.1f} {wait_ms:13.1f}"
        print(line, flush=True)
        text = work.caller.call("GET", "/metrics").body.decode()
        for method, route, seconds in _STALL.findall(text):
            kind = f"{method} {route}"
            if kind not in held or float(seconds) > held[kind][0]:
                held[kind] = float(seconds), name
    print("\ngoq_loop_stall_seconds, the longest of each, ms, and the request by which it was seen")
    for kind, (longest_s, name) in sorted(held.items(), key=lambda item: -item[1][0]):
        print(f"{kind:60} {longest_s * 1000:9.1f}  {name}")
    prober.stop()


if __name__ == "__main__":
    sys.exit(main())
