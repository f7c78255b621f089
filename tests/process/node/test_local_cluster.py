"""``make cluster``: several nodes by one command, which ends with all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.node.ports import free_port
from tests.support.paths import REPOSITORY

TOOL = REPOSITORY / "tools" / "cluster.py"
STOP_S_MAX = 60


def test_one_command_runs_three_nodes_and_ends_all_of_them(tmp_path: Path) -> None:
    port = free_port(besides=(1, 2, 1000, 1001, 1002))
    command = [sys.executable, str(TOOL), "--dir", str(tmp_path / "data"), "--port", str(port)]
    tool = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        assert tool.stdout is not None
        assert tool.stdout.readline().startswith("3 nodes are ready")
        urls = tool.stdout.readline().split("=", 1)[1].strip().split(",")
        assert len(urls) == 3
        eventually(lambda: all(_up(url) == 3 for url in urls))
        tool.stdout.readline()
        killed = tool.stdout.readline().split("n2 is process ")[1].split(",")[0]
        os.kill(int(killed), signal.SIGKILL)
        eventually(lambda: _up(urls[0]) == 2)
        eventually(lambda: all(_up(url) == 3 for url in urls))
    finally:
        tool.send_signal(signal.SIGINT)
        tool.communicate(timeout=STOP_S_MAX)
    assert tool.returncode == 0
    for url in urls:
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url, timeout=5)


def _up(url: str) -> int:
    """How many nodes are up, as a node tells; 0 if it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/v1/cluster", timeout=5) as answer:
            return sum(node["status"] == "up" for node in json.load(answer)["nodes"])
    except OSError:
        return 0
