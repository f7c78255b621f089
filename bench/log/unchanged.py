"""``python -m bench.log.unchanged [GIB]``: backups of a large node in which nothing changed.

Prints the seconds of each backup, and how many bytes the node read and wrote meanwhile, also from
memory (``/proc/PID/io``). Then the same by ``goq backup --data-dir``. The default is 10 GiB; the
disk needs three times as much.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness.servers import GoqNode
from bench.harness.topics import fill
from goq.backup.backup import BackupResult, back_up_folder
from goq.client import Client
from goq.storage.disk import RealDisk

TOPIC = "large"
_VALUE_BYTES = 10_000
"""Large values fill a disk fast: a backup reads no messages."""


def _io_bytes(pid: int | str) -> tuple[int, int]:
    """Return how many bytes a process has read and written by now."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    found = dict(line.split(": ") for line in lines)
    return int(found["rchar"]), int(found["wchar"])


def _measured(what: str, pid: int | str, work: Callable[[], int]) -> None:
    before, began_s = _io_bytes(pid), time.perf_counter()
    copied_bytes = work()
    seconds = time.perf_counter() - began_s
    read, written = (now - then for now, then in zip(_io_bytes(pid), before, strict=True))
    print(
        f"{what:32} {seconds:8.2f} s  copied {copied_bytes:14,}  read {read:14,}"
        f"  written {written:14,}",
        flush=True,
    )


def main() -> None:
    """Fill a node, and back it up three times in each way."""
    size_bytes = round(float(sys.argv[1]) * 2**30) if len(sys.argv) > 1 else 10 * 2**30
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        to = folder / "backups"
        with (
            GoqNode(folder / "node", "--set", f"backup.to={to}") as node,
            Client(node.url) as client,
        ):
            client.create_topic(TOPIC)
            fill(node, TOPIC, size_bytes // _VALUE_BYTES, _VALUE_BYTES)
            for number in range(3):
                _measured(
                    f"backup {number + 1} of the running node",
                    node.process.pid,
                    lambda: client.create_backup().copied_bytes,
                )
        shutil.rmtree(to)

        def back_up() -> BackupResult:
            return back_up_folder(RealDisk(), folder / "node", to, time.time_ns() // 1000)

        for number in range(3):
            _measured(f"backup {number + 1} of its folder", "self", lambda: back_up().copied_bytes)


if __name__ == "__main__":
    main()
