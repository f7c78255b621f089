"""``python -m bench.cluster.commits [COUNT]``: how long Raft takes to agree on a change.

Three members, each a process with the metadata and the journal of a node, on the loopback
interface. The leader proposes one change after another. Without HTTP, brokers and replicas, this is
what any change costs at least. The disk's time for a synced append is told beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from bench.harness.disk import append_rate
from bench.harness.servers import free_port
from bench.messages.latency import quantiles
from goq.cluster.metadata.command_codec import encode_command
from goq.cluster.metadata.commands import AlterClusterSettings
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state_machine import MetadataStateMachine, decode_result
from goq.cluster.raft.driver import RaftSettings
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.transport.link import Credentials
from goq.limits import MIB

_SECRET = b"of a cluster that measures"
_PAUSE_S = 0.02
_WARM = 50


def _member(folder: Path, specs: list[str], number: int, count: int, pipe: Connection) -> None:
    """Run a member until the pipe closes; the leader tells how long its proposals took, in ms."""
    spec = specs[number]
    own = folder / str(number)
    (own / "raft").mkdir(parents=True)
    host, _, port = spec.partition("=")[2].rpartition(":")
    others = tuple(other for other in specs if other != spec)
    settings = RaftSettings(spec, (host, int(port)), own / "raft", Credentials(_SECRET), others)

    async def run() -> None:
        machine = MetadataStateMachine(own)
        node = RaftNode(settings, machine)
        await node.start()
        while not pipe.poll():
            await asyncio.sleep(_PAUSE_S)
            if node.is_leader:
                await _propose(node, 1, _WARM)
                pipe.send(await _propose(node, 1 + _WARM, count))
                while not pipe.poll():
                    await asyncio.sleep(_PAUSE_S)
        await node.stop()
        machine.close()

    asyncio.run(run())


async def _propose(node: RaftNode, first: int, count: int) -> list[float]:
    """Change the settings, whose versions begin at 1; return the times of so many changes."""
    times_ms = []
    for version in range(first, first + count):
        command = AlterClusterSettings(version, move_bytes_per_s=MIB + version)
        began_s = time.perf_counter()
        result = decode_result(await node.propose(encode_command(command)))
        times_ms.append(1000 * (time.perf_counter() - began_s))
        assert isinstance(result, Accepted), result
    return times_ms


def commit_times_ms(folder: Path, members: int, count: int) -> list[float]:
    """Return how long the leader of so many members took for each of ``count`` changes."""
    spawning = get_context("spawn")
    specs = [f"n{number}=127.0.0.1:{free_port()}" for number in range(members)]
    pipes, processes = [], []
    for number in range(members):
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=_member, args=(folder, specs, number, count, theirs))
        process.start()
        pipes.append(ours)
        processes.append(process)
    while not (told := [pipe for pipe in pipes if pipe.poll(_PAUSE_S)]):
        pass
    times_ms: list[float] = told[0].recv()
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()
    return times_ms


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.commits", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=500)
    asked = parser.parse_args()
    for members in (1, 3):
        with tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as name:
            sync_ms = 1000 / append_rate(Path(name), 300, 500)
            p50, p99 = quantiles(commit_times_ms(Path(name), members, asked.count))
        print(f"{members} members: p50 {p50:.2f} ms, p99 {p99:.2f} ms; a sync {sync_ms:.2f} ms")


if __name__ == "__main__":
    main()
