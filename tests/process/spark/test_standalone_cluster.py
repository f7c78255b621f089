"""A Spark cluster of a master and two workers, each a process, reads, writes and exports topics."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset
import pyspark
import pytest

from goq.client import Client
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess
from tests.support.node.ports import free_ports

_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"
_COUNT = 20_000
_S_MAX = 600
_COPY = """
import json, sys
from pyspark.sql import SparkSession

master, server = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.executor.memory", "512m")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
node = {"server": server}
rows = spark.read.format("goq").options(**node, topic="orders").load().select("value")
print(json.dumps({"rows": rows.count(), "distinct": rows.distinct().count()}))
rows.write.format("goq").options(**node, topic="copies").mode("append").save()
"""


@contextmanager
def _process(command: list[str], log: Path, env: dict[str, str]) -> Iterator[None]:
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, env=env)
    try:
        yield
    finally:
        running.terminate()
        running.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with two workers of one core."""
    port, *pages = free_ports(4)
    url = f"spark://127.0.0.1:{port}"
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    begin = [str(_SPARK_CLASS), f"{_DEPLOY}.master.Master", "--host", "127.0.0.1"]
    ports = ["--port", str(port), "--webui-port", str(pages[0])]
    log = tmp_path / "master.log"
    with _process([*begin, *ports], log, env):
        eventually(lambda: _listens(port), seconds=120, pause_s=0.2)
        with _worker(tmp_path, 1, pages[1], url, env), _worker(tmp_path, 2, pages[2], url, env):
            eventually(
                lambda: log.read_text().count("Registering worker") == 2, seconds=120, pause_s=0.2
            )
            yield url


@contextmanager
def _worker(folder: Path, number: int, page: int, url: str, env: dict[str, str]) -> Iterator[None]:
    command = [str(_SPARK_CLASS), f"{_DEPLOY}.worker.Worker", "--host", "127.0.0.1"]
    command += ["--cores", "1", "--memory", "1g", "--webui-port", str(page)]
    command += ["--work-dir", str(folder / f"work{number}"), url]
    with _process(command, folder / f"worker{number}.log", env):
        yield


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_S_MAX, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
def test_tasks_on_workers_read_write_and_export_what_a_single_process_does(
    master: str, tmp_path: Path
) -> None:
    values = {f"v{number}" for number in range(_COUNT)}
    with NodeProcess(tmp_path / "data") as node, Client(node.url) as client:
        client.create_topic("orders", 4)
        client.publish_many("orders", sorted(values))
        said = _run([sys.executable, "-c", _COPY, master, node.url])
        counted = json.loads(said.splitlines()[-1])
        assert counted == {"rows": _COUNT, "distinct": _COUNT}
        assert sorted((m.value or b"").decode() for m in client.read_log("copies")) == sorted(
            values
        )
        export = [sys.executable, "-m", "goq_cli", "--server", node.url, "export", "orders", "--to"]
        spark = ["--engine", "spark", "--master", master, "--conf", "spark.executor.memory=512m"]
        _run([*export, str(tmp_path / "spark"), *spark, "--conf", "spark.driver.host=127.0.0.1"])
        _run([*export, str(tmp_path / "local")])
        by_spark, by_one = (_rows(tmp_path / name) for name in ("spark", "local"))
        assert by_spark == by_one
        assert {row["value"] for row in by_one} == {value.encode() for value in values}


def _rows(lake: Path) -> list[dict[str, object]]:
    files = sorted(str(file) for file in (lake / "messages").rglob("*.parquet"))
    table = pyarrow.dataset.dataset(files).to_table(["partition", "offset", "value", "timestamp"])
    rows: list[dict[str, object]] = table.sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    ).to_pylist()
    return rows
