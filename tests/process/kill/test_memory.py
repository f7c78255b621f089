"""A million lines in one pipe take little memory, however slow the other side is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from goq import limits
from goq.client import Client
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess, memory_bytes_max, running_goq

LINES = 1_000_000
LINES_A_PIECE = 10_000
MEMORY_BYTES_MAX = 150 * limits.MIB
WATCH_PERIOD_S = 0.005
STANDSTILL_S = 0.4
COMMAND_S_MAX = 120.0
CHUNK_BYTES = limits.MIB


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--from-beginning",), id="log"),
        pytest.param(("--group", "g", "--until-empty"), id="group", marks=pytest.mark.long),
    ],
)
def test_a_million_lines_pass_a_node_and_a_reader_that_stand_still_with_flat_memory(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    with NodeProcess(tmp_path / "data", interpreter=True) as node, Client(node.url) as client:
        client.create_topic("lines", 3)
        produced_bytes_max = produce(node, client)
        assert sum(p.end_offset for p in client.describe_topic("lines").partitions) == LINES
        node_bytes_max = node.memory_bytes_max()
        consumed_bytes_max = consume(node, *options)
        assert all(group.lag == 0 for group in client.list_groups("lines"))
        held = {
            "goq produce": produced_bytes_max,
            "the node after produce": node_bytes_max,
            "goq consume": consumed_bytes_max,
            "the node": node.memory_bytes_max(),
        }
    print({name: f"{size / limits.MIB:.0f} MiB" for name, size in held.items()})
    assert {name: size for name, size in held.items() if size > MEMORY_BYTES_MAX} == {}


def produce(node: NodeProcess, client: Client) -> int:
    """Pipe all lines in while the node stands still twice; return the memory it took."""
    fed = [0]
    with (
        running_goq(node, "produce", "lines", stdin=subprocess.PIPE) as process,
        memory_watched(process) as memory_bytes,
    ):
        feeder = threading.Thread(target=feed, args=(process, fed))
        feeder.start()
        try:
            for share in (0.05, 0.4):
                eventually(lambda share=share: fed[0] > share * LINES, "lines are taken")
                with node.paused():
                    stands_still(lambda: fed[0])
                    assert fed[0] < LINES
            return memory_bytes()
        finally:
            if process.poll() is None:
                process.kill()
            feeder.join()


def feed(process: subprocess.Popen[bytes], fed: list[int]) -> None:
    assert process.stdin is not None
    try:
        for start in range(0, LINES, LINES_A_PIECE):
            numbers = range(start, start + LINES_A_PIECE)
            process.stdin.write(b"".join(b"line %d of a million\n" % n for n in numbers))
            fed[0] += LINES_A_PIECE
        process.stdin.close()
    except BrokenPipeError:
        pass  # the command ended: its exit code tells


def consume(node: NodeProcess, *options: str) -> int:
    """Read all lines while the reader stands still twice; return the memory it took."""
    seen = bytearray(LINES)
    arguments = ("consume", "lines", "--raw", *options)
    with (
        running_goq(node, *arguments, stdout=subprocess.PIPE) as process,
        memory_watched(process) as memory_bytes,
    ):
        assert process.stdout is not None
        rest, size_bytes = b"", 0
        pauses = [12 * CHUNK_BYTES, CHUNK_BYTES]
        while piece := os.read(process.stdout.fileno(), CHUNK_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                seen[int(line.split(b" ", 2)[1])] += 1
            size_bytes += len(piece)
            if pauses and size_bytes > pauses[-1]:
                pauses.pop()
                stands_still(lambda: cpu_ticks(process.pid))
        assert rest == b""
        assert pauses == []
        assert seen == b"\1" * LINES
        return memory_bytes()


def stands_still(progress: Callable[[], int]) -> None:
    """Return when there has been no progress for a while."""
    last, since_s = progress(), time.monotonic()

    def has_stopped() -> bool:
        nonlocal last, since_s
        if (now := progress()) != last:
            last, since_s = now, time.monotonic()
        return time.monotonic() - since_s > STANDSTILL_S

    eventually(has_stopped, "it stands still", seconds=COMMAND_S_MAX)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextlib.contextmanager
def memory_watched(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], int]]:
    """Yield what tells, once the process has ended, how much memory it held at most.

    The usage that the system reports at the end would count what this process held when it
    started the other.
    """
    held = [0]
    over = threading.Event()

    def watch() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.wait(WATCH_PERIOD_S):
                held.append(memory_bytes_max(process.pid))

    def ended() -> int:
        assert process.wait(COMMAND_S_MAX) == 0
        return held[-1]

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield ended
    finally:
        over.set()
        watcher.join()
