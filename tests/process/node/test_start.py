"""A start imports nothing heavy, also where every extra is installed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from goq import limits
from tests.support.cli.command import COMMAND_S_MAX, GOQ
from tests.support.node.node_process import NodeProcess

HEAVY = {
    *("crc32c", "cronsim", "httpx", "prometheus_client", "zoneinfo"),
    *("opentelemetry", "pandas", "pyarrow", "pyiceberg", "pyspark", "rich"),
    *("pydantic", "pydantic_settings", "scipy", "sqlalchemy", "sqlite_utils", "yaml"),
}
NOT_YET = (
    *("goq.client", "goq.pipeline", "goq.sqs", "goq.api.metrics.node", "goq.api.gateway.gateway"),
    *("http.client", "http.server"),
    *("goq.cluster.raft", "goq.cluster.replication.replica", "goq.cluster.bootstrap"),
)
IDLE_BYTES_MAX = 80 * limits.MIB
_IMPORTED = re.compile(r"^import time:.*\| *([\w.]+)$", re.MULTILINE)


def test_an_idle_node_has_imported_nothing_heavy_and_is_small(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", environment={"PYTHONPROFILEIMPORTTIME": "1"}) as node:
        modules = set(_IMPORTED.findall(node.log.read_text()))
        assert "goq.node" in modules
        assert {name.partition(".")[0] for name in modules} & HEAVY == set()
        assert not [name for name in modules if name.startswith(NOT_YET)]
        (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{node.pid}/status").read_text())
        assert int(line) * limits.KIB < IDLE_BYTES_MAX
        assert node.stop() == 0


@pytest.mark.parametrize("name", ["journal/0000.journal", "LOCK"])
def test_a_start_that_cannot_read_a_file_says_which_in_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(path)  # so that no user may open it, root neither
    done = subprocess.run(
        [*GOQ, "serve", "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("goq: ")
    assert f"{path}: Too many levels of symbolic links" in line
    assert done.returncode > 1


@pytest.mark.parametrize("output", [">&-", "> /dev/full"])
def test_a_node_serves_though_nobody_takes_its_output(tmp_path: Path, output: str) -> None:
    data = tmp_path / "data"
    words = [*GOQ, "serve", "--data-dir", str(data), "--listen", "127.0.0.1:0"]
    script = f"exec 3>&1; (echo $BASHPID >&3; exec {shlex.join(words)} 3>&-) {output}"
    with subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        assert shell.stderr is not None
        pid = int(shell.stdout.readline())
        try:
            said = ""
            while not re.search(r"stdout: \w+", said) and (line := shell.stderr.readline()):
                said += line
            url = re.search(r" on (http\S+),", said)
            assert url is not None, said
            with urlopen(f"{url[1]}/readyz", timeout=COMMAND_S_MAX) as answer:
                assert answer.status == 200
        finally:
            os.kill(pid, signal.SIGTERM)
        assert "stopped" in shell.stderr.read()
