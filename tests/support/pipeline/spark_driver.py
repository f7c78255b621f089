"""A Spark driver of its own to be killed: it copies a topic into another one, by a stream.

Run as a program it is the driver, and ends with 0 when all is copied.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.paths import REPOSITORY
from tests.support.pipeline.spark_settings import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

COPY_S_MAX = 300
END_S_MAX = 20


def start_copy(
    spark: SparkSession, server: str, source: str, sink: str, checkpoint: Path, batch: int
) -> StreamingQuery:
    """Start the stream that copies what there is now, ``batch`` messages at a time, and ends."""
    node = {"server": server}
    reader = spark.readStream.format("goq").options(**node, topic=source)
    return (
        reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(batch))
        .load()
        .select("key", "value")
        .writeStream.format("goq")
        .options(**node, topic=sink, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


class Driver:
    """The process, with its JVM and that one's Python workers: a session of processes."""

    def __init__(self, server: str, source: str, sink: str, checkpoint: Path, batch: int) -> None:
        arguments = (server, source, sink, str(checkpoint), str(batch))
        self._log = checkpoint.with_name("driver.log")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=checkpoint.parent,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},  # where Spark looks for goq
                start_new_session=True,
            )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self, *, workers_too: bool = True) -> None:
        """Kill the driver and the JVM, and their Python workers or not: those end by themselves."""
        os.killpg(self._process.pid, signal.SIGKILL)
        if workers_too:
            self._kill_session()

    def wait(self) -> int:
        """Return how the driver ended; fail if it does not end in time."""
        try:
            return self._process.wait(2 * COPY_S_MAX)
        except subprocess.TimeoutExpired as error:
            error.add_note(self.said())
            raise

    def said(self) -> str:
        """Return the end of what the driver wrote."""
        return self._log.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Leave no process behind."""
        until_s = time.monotonic() + END_S_MAX
        while self._kill_session() and time.monotonic() < until_s:
            time.sleep(0.01)
        self._process.wait(END_S_MAX)

    def _kill_session(self) -> int:
        """Kill what is left of the session; return how many there were."""
        found = [pid for pid in _alive() if _session_of(pid) == self._process.pid]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return len(found)


def _alive() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _session_of(pid: int) -> int | None:
    """Return the session of a process, None if it has ended."""
    try:
        state, _, _, session, *_ = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def main(server: str, source: str, sink: str, checkpoint: str, batch: str) -> int:
    """Copy; return the exit code."""
    from goq.pipeline.spark.session import spark_session

    folder = Path(checkpoint)
    settings = {
        **QUICK,
        "spark.driver.memory": "512m",
        "spark.local.dir": str(folder.with_name("local")),
        "spark.sql.warehouse.dir": str(folder.with_name("warehouse")),
        "spark.sql.streaming.minBatchesToRetain": "10",
    }
    spark = spark_session("local[2]", settings)
    query = start_copy(spark, server, source, sink, folder, int(batch))
    return 0 if query.awaitTermination(COPY_S_MAX) else 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
