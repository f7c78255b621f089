"""A Spark session for goq's own jobs and for trying things out.

Without being told otherwise Spark starts its Python workers with the ``python3`` of the path, which
need not be the one that has goq.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from goq.errors import UsageError

LOCAL_MASTER = "local[*]"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}


def spark_session(
    master: str = LOCAL_MASTER, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the session of this process, made if there is none.

    ``settings`` are Spark's own. Raises ``UsageError`` where there is no Java.
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


def check_java() -> None:
    """Raise ``UsageError`` that says what to install, if Spark would find no Java."""
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not found or not os.access(found, os.X_OK):
        raise UsageError(
            "Spark needs Java 17 or later, and there is none: install it (for instance"
            " openjdk-17-jre-headless), or set JAVA_HOME"
        )
