"""A node's log and its answers to signals, seen on a real process."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from goq import __version__
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess, tells_of_load
from tests.support.node.ports import HOST, reserved_port

STOP_S_MAX = 30.0


class ConfiguredNode:
    """A node with a file of settings that the test changes."""

    def __init__(self, folder: Path, port: int) -> None:
        self.path = folder / "goq.yaml"
        self.broker = {"listen": f"{HOST}:{port}", "data_dir": str(folder / "data")}
        self.write()
        words = ("serve", "--config", str(self.path), "--log-format", "json")
        self.process = NodeProcess(folder / "data", port=port, arguments=words)

    def write(self, **sections: Any) -> None:
        broker = self.broker | sections.pop("broker", {})
        self.path.write_text(json.dumps({"broker": broker, **sections}))

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def records(self) -> list[dict[str, str]]:
        """The records that are written as a whole: a long one reaches the file in pieces.

        What a node tells of a busy machine is left out.
        """
        lines = self.process.log.read_text().splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [record for record in records if not tells_of_load(record["message"])]

    def told(self, part: str) -> bool:
        return any(part in record["message"] for record in self.records())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ConfiguredNode]:
    with reserved_port() as port:
        configured = ConfiguredNode(tmp_path, port)
        with configured.process:
            yield configured


def status(node: ConfiguredNode, host: str) -> int:
    return node.process.request("GET", "/v1/topics", None, {"Host": host}).status


def test_the_log_tells_the_start_with_what_differs_from_the_defaults_and_the_stop(
    node: ConfiguredNode,
) -> None:
    [started] = node.records()
    assert (started["level"], started["logger"]) == ("info", "goq.node")
    for part in (
        f"goq {__version__} started as node-1 on {node.process.url}, data in {node.process.folder}",
        f"broker.data_dir={node.process.folder}",
        f"broker.listen={HOST}:{node.process.port}",
        "logging.format=json",
    ):
        assert part in started["message"]
    assert "auto_create_topics" not in started["message"]  # it is the default
    assert node.process.stop(seconds=STOP_S_MAX) == 0
    assert [record["message"] for record in node.records()[1:]] == [
        "stopping, on SIGTERM",
        "stopped",
    ]


def test_sighup_applies_what_can_change_while_the_node_runs_and_names_the_rest(
    node: ConfiguredNode,
) -> None:
    assert status(node, "goq.example.com") == 421
    node.write(
        security={"hosts": ["goq.example.com"]},
        logging={"level": "warning"},
        broker={"auto_create_topics": False},
    )
    node.send(signal.SIGHUP)
    eventually(lambda: node.told("loaded the settings again"))
    assert status(node, "goq.example.com") == 200
    assert node.told("security.hosts=goq.example.com")
    assert node.told("logging.level=warning")
    assert node.told("broker.auto_create_topics=False counts from the next start on")
    assert node.process.stop(seconds=STOP_S_MAX) == 0
    assert not node.told("stopped")  # an info record


def test_sighup_tells_that_the_token_of_the_data_folder_counts_no_more(tmp_path: Path) -> None:
    with reserved_port() as port:
        node = ConfiguredNode(tmp_path, port)
        node.write(security={"auth": "tokens"})
        token = tmp_path / "data" / "admin.token"
        with node.process:
            text = token.read_text()
            for change, told in (
                (lambda: None, "nothing changed"),
                (token.unlink, "admin.token=none"),
                (lambda: write_private(token, text), "admin.token=replaced"),
            ):
                change()
                node.send(signal.SIGHUP)
                eventually(partial(node.told, f"loaded the settings again: {told}"))


def write_private(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text)


def test_settings_that_are_wrong_are_told_and_the_old_ones_kept(node: ConfiguredNode) -> None:
    node.write(security={"hosts": ["goq.example.com"], "unknown": 1})
    node.send(signal.SIGHUP)
    eventually(lambda: node.told("the settings are kept: security.unknown"))
    assert status(node, "goq.example.com") == 421
    assert status(node, "localhost") == 200


def test_sighup_again_and_again_fails_no_request(node: ConfiguredNode) -> None:
    statuses: set[int] = set()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            statuses.add(status(node, "localhost"))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for number in range(20):
            node.write(security={"hosts": [f"goq{number}.example.com"]})
            node.send(signal.SIGHUP)
            wanted = f"loaded the settings again: security.hosts=goq{number}.example.com"
            eventually(partial(node.told, wanted))
    finally:
        stop.set()
        asking.join()
    assert statuses == {200}


def test_sigusr1_writes_what_is_under_way_to_the_log(node: ConfiguredNode) -> None:
    node.process.call("POST", "/v1/topics", {"name": "orders"})
    path = "/v1/topics/orders/groups/billing/receive"
    waiting = threading.Thread(
        target=node.process.request, args=("POST", path, {"wait": "20s"}), daemon=True
    )
    waiting.start()

    def dumped() -> bool:
        node.send(signal.SIGUSR1)
        return node.told(f"<Request POST {path} from {HOST}")

    eventually(dumped, pause_s=0.2)
    [message, *_] = [r["message"] for r in node.records() if path in r["message"]]
    assert "1 requests\n" in message
    assert "tasks, by where they wait" in message
    assert "MainThread" in message
    assert node.process.is_running
    assert node.process.stop(seconds=STOP_S_MAX) == 0
    waiting.join(STOP_S_MAX)


def test_a_node_at_rest_writes_nothing_to_its_log(node: ConfiguredNode) -> None:
    node.process.call("POST", "/v1/topics", {"name": "orders"})
    for _ in range(100):
        assert status(node, "localhost") == 200
    assert len(node.records()) == 1
