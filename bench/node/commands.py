"""Rows of whole processes: ``goq produce``, short commands, and a node that has nothing to do."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GOQ, GoqNode
from bench.harness.topics import fill, fresh_topic

LINES = 1_000_000
LINES_REDIS = 150_000
STARTS = 7


class Ran(NamedTuple):
    """What a process took."""

    wall_s: float
    cpu_s: float
    rss_mb: float


def run(command: list[str], environment: dict[str, str], stdin: Path | None = None) -> Ran:
    """Run a command to its end; raise ``RuntimeError`` unless it succeeds."""
    with open(stdin or os.devnull, "rb") as source:
        began_s = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, stdin=source, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Ran(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _lines(place: Place, count: int) -> Path:
    path = place.folder / f"lines-{count}"
    if not path.exists():
        with path.open("w") as file:
            file.writelines(
                f"line {number} of a short log, as they come\n" for number in range(count)
            )
    return path


def _produce(place: Place) -> tuple[float, float, float]:
    count = place.scaled(LINES, 20_000)
    command = [GOQ, "produce", fresh_topic(place.goq), str(_lines(place, count))]
    ran = run(command, place.goq.environment())
    return count / ran.wall_s, ran.cpu_s, ran.rss_mb


def _produce_redis(place: Place) -> float:
    assert place.redis is not None
    count = place.scaled(LINES_REDIS, 20_000)
    path = _lines(place, count)
    command = [sys.executable, "-m", "bench.node.redis_lines", str(place.redis.port), str(path)]
    return count / run(command, dict(os.environ)).wall_s


def _version_ms(place: Place) -> float:
    return 1000 * run([GOQ, "version"], place.goq.environment()).cpu_s


def _one_line_ms(place: Place) -> float:
    topic, line = fresh_topic(place.goq), place.folder / "line"
    line.write_text("one line\n")
    return 1000 * run([GOQ, "produce", topic], place.goq.environment(), line).cpu_s


def _idle(place: Place) -> tuple[float, float]:
    fresh_topic(place.goq)
    time.sleep(2.0)
    idle_s = place.scaled(10, 3)
    before_s = place.goq.cpu_s()
    time.sleep(idle_s)
    return 100 * (place.goq.cpu_s() - before_s) / idle_s, place.goq.rss_mb()


def _start_s(place: Place) -> float:
    """Return the time from starting a node on an empty folder to its first ``/readyz``."""
    took_s = []
    for number in range(STARTS):
        began_s = time.perf_counter()
        with GoqNode(place.folder / f"start-{number}") as node:
            urllib.request.urlopen(f"{node.url}/readyz").close()
            took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s)


def _exec(place: Place) -> float:
    """Return the rate of ``goq consume --exec`` with two jobs, over the whole process."""
    topic, count = fresh_topic(place.goq), place.scaled(3000, 1000)
    fill(place.goq, topic, count)
    command = [GOQ, "consume", topic, "--group", "exec", "--exec", "true", "--jobs", "2"]
    return count / run([*command, "--until-empty"], place.goq.environment()).wall_s


def _start_after_kill_s(place: Place) -> float:
    """Return the time to the first ``/readyz`` after a kill, with a GiB and a full journal."""
    folder = place.folder / f"killed-{time.monotonic_ns()}"
    with GoqNode(folder) as node:
        topic = fresh_topic(node)
        fill(node, topic, place.scaled(1_000_000, 100_000))
        body = frames.anonymous_body(frames.values(1, 1000))
        request = (frames.request_head(topic, len(body)) + body,)
        singles = place.scaled(60_000, 6000)
        load(node.port, [itertools.repeat(request)] * 64, singles, http_answer_length)
        node.process.kill()
        node.process.wait()
    began_s = time.perf_counter()
    with GoqNode(folder) as node:
        urllib.request.urlopen(f"{node.url}/readyz").close()
        return time.perf_counter() - began_s


_PRODUCE = "goq produce of 1,000,000 short lines from a file"
WORKS = [
    Work(
        [
            Row("produce", f"{_PRODUCE}, whole process", "lines/s", 250_000),
            Row("produce-cpu", f"{_PRODUCE}: CPU of the process", "s"),
            Row("produce-rss", f"{_PRODUCE}: its peak memory", "MB", 150, at_most=True),
        ],
        _produce,
        _produce_redis,
    ),
    Work(
        [
            Row("idle-cpu", "idle node: CPU", "% of a core", 0.3, at_most=True),
            Row("idle-rss", "idle node: resident memory", "MB", 80, at_most=True),
        ],
        _idle,
    ),
    Work(
        [Row("idle-start", "start of a node: to /readyz, median", "s", 0.4, at_most=True)],
        _start_s,
    ),
    Work(
        [Row("killed-start", "start after SIGKILL, 1 GB and a full journal", "s", 1, at_most=True)],
        _start_after_kill_s,
    ),
    Work([Row("exec", "goq consume --exec true --jobs 2, whole process", "msg/s", 500)], _exec),
    Work([Row("version", "goq version: CPU", "ms", 150, at_most=True)], _version_ms),
    Work([Row("one-line", "goq produce of one line: CPU", "ms", 150, at_most=True)], _one_line_ms),
]
