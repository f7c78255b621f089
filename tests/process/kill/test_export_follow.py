"""``goq export --follow`` while its node is away."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from goq.client import Client
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess, running_goq

COMMAND_S_MAX = 60


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data") as serving:
        yield serving


def values(lake: Path) -> list[bytes]:
    paths = sorted(lake.glob("messages/*/*/*.parquet"))
    return [row["value"] for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


@pytest.mark.long
def test_it_says_once_that_it_waits_and_goes_on_with_the_node_until_it_is_interrupted(
    node: NodeProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    words = ("export", "lines", "--to", str(lake), "--follow", "--every", "50ms")
    with Client(node.url, retries="30s") as client:
        client.create_topic("lines", 1)
        client.publish("lines", b"first")
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with running_goq(node, *words, **streams) as export:
            assert export.stderr is not None
            eventually(lambda: values(lake) == [b"first"], "the first is exported")
            node.kill()
            assert export.stderr.readline().startswith(b"goq: waiting for http://")
            node.start()
            client.publish("lines", b"second")
            eventually(lambda: values(lake) == [b"first", b"second"], "the second is exported")
            node.kill()
            assert export.stderr.readline().startswith(b"goq: waiting for http://")
            export.send_signal(signal.SIGINT)
            assert export.wait(COMMAND_S_MAX) == 130
            assert export.stderr.read() == b""


def test_it_gives_up_after_the_time_that_it_was_given(node: NodeProcess, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    words = ("export", "lines", "--to", str(lake), "--follow", "--every", "50ms")
    with Client(node.url, retries="30s") as client:
        client.create_topic("lines", 1)
        client.publish("lines", b"first")
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with running_goq(node, *words, "--retry-for", "500ms", **streams) as export:
        eventually(lambda: values(lake) == [b"first"], "the first is exported")
        node.kill()
        _, said = export.communicate(timeout=COMMAND_S_MAX)
        assert export.returncode == 5
        assert b"cannot connect to" in said
