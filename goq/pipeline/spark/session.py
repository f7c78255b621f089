"""The Spark session of goq's commands.

Spark's default starts Python workers with the ``python3`` on the path, which may lack goq; this
session uses the running interpreter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping

from pyspark.sql import SparkSession

from goq.errors import Unavailable, UsageError

_JAVA_MIN = 17
LOCAL_MASTER = "local[*]"
EXECUTOR_S_MAX = 60.0
_POLL_S = 0.2
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Rows from Python take a fifth less time than over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
}


def spark_session(
    master: str = LOCAL_MASTER, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, created if there is none.

    ``settings`` are Spark's own. Raises ``UsageError`` if Java is missing or too old.
    """
    check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("goq")
    for name, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def parse_settings(given: Iterable[str]) -> dict[str, str]:
    """Return settings of Spark from ``name=value``; raise ``UsageError`` for anything else."""
    settings: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.startswith("spark.")):
            raise UsageError(f"--conf takes spark.NAME=VALUE, not {text[:100]!r}")
        settings[name] = value
    return settings


def await_executor(session: SparkSession) -> None:
    """Return once the session has an executor; a local one has it from the beginning.

    Raises ``Unavailable`` if none comes in time. Spark itself would wait without an end.
    """
    context = session.sparkContext
    if str(context.master).startswith("local"):
        return
    memory = context.getConf().get("spark.executor.memory", "1g")
    spark = context._jsc.sc()
    await_first(lambda: int(spark.getExecutorMemoryStatus().size()) - 1, memory)


def await_first(
    executors: Callable[[], int],
    memory: str | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once ``executors`` gives one or more; raise ``Unavailable`` if it does not in time."""
    until_s = clock() + EXECUTOR_S_MAX
    while executors() < 1:  # the driver is not counted
        if clock() >= until_s:
            raise Unavailable(
                f"no executor came within {EXECUTOR_S_MAX:.0f} s: the master has no worker with"
                f" {memory} of memory and a core to spare; ask for less with"
                " --conf spark.executor.memory=512m"
            )
        sleep(_POLL_S)


def check_java() -> None:
    """Raise ``UsageError`` with what to install if Spark would find no usable Java."""
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if home and not os.access(str(found), os.X_OK):
        raise UsageError(
            f"Spark needs Java {_JAVA_MIN} or later, and there is none in JAVA_HOME, {home}: set it"
            " to where Java is, or unset it"
        )
    if not found:
        raise UsageError(
            f"Spark needs Java {_JAVA_MIN} or later, and there is none: install it (for instance"
            f" openjdk-{_JAVA_MIN}-jre-headless), or set JAVA_HOME"
        )
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?([0-9]+)', said)
    if version is None or int(version[1]) < _JAVA_MIN:
        what = f"version {version[1]}" if version else "no Java"
        raise UsageError(
            f"Spark needs Java {_JAVA_MIN} or later, and {found} is {what}: install a newer one"
            f" (for instance openjdk-{_JAVA_MIN}-jre-headless), and set JAVA_HOME to it"
        )
