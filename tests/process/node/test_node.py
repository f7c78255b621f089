"""A node in a process of its own, as a service manager runs it."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.node_process import NodeProcess, tells_of_load

STOP_S_MAX = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", interpreter=True) as node:
        yield node


def assert_ends_quietly(node: NodeProcess) -> None:
    """Wait for the end: the exit code is 0, and the log tells the start and the stop alone."""
    assert node.process is not None
    assert node.process.wait(STOP_S_MAX) == 0
    lines = [line for line in node.log_text().splitlines() if not tells_of_load(line)]
    told = [line.split(" ", 5)[2:5] for line in lines]
    assert {" ".join(words) for words in told} == {
        "INFO goq.node: goq",
        "INFO goq.node: stopping,",
        "INFO goq.node: stopped",
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_node_quietly(node: NodeProcess, number: signal.Signals) -> None:
    assert node.request("GET", "/readyz").status == 200
    os.kill(node.pid, number)
    assert_ends_quietly(node)


def test_a_publish_under_way_is_answered_and_kept(node: NodeProcess) -> None:
    """Several clients publish without end; what was answered is there after the restart."""
    answered: list[int] = []
    refused: list[Answer] = []
    last: list[BaseException | None] = []

    def produce() -> None:
        body = {"messages": [{"value": "x"}]}
        try:
            while True:
                answer = node.request("POST", "/v1/topics/t/messages", body)
                if answer.status == 200:
                    answered.append(answer.status)
                else:
                    refused.append(answer)
        except OSError as error:
            last.append(error.__cause__ or error)

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) >= 50)
    node.terminate()
    assert_ends_quietly(node)
    for thread in threads:
        thread.join(STOP_S_MAX)
    assert not refused
    assert {type(error) for error in last} <= {
        BrokenPipeError,
        ConnectionRefusedError,
        ConnectionResetError,
        http.client.RemoteDisconnected,
    }
    node.start()
    topic = node.call("GET", "/v1/topics/t")
    stored = sum(partition["end_offset"] for partition in topic["partitions"])
    assert stored >= len(answered)
    node.terminate()
    assert_ends_quietly(node)


def test_other_users_can_read_no_file_of_the_data_folder(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with NodeProcess(tmp_path / "data", interpreter=True) as node:
            node.call("PUT", "/v1/topics/t")
            node.call("POST", "/v1/topics/t/messages", {"messages": [{"value": "x"}]})
            receive = "/v1/topics/t/groups/g/receive"
            assert node.call("POST", receive, {"wait": "10s"})["messages"]
            kept = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
            open_to_others = []
            for path in kept:
                with suppress(FileNotFoundError):  # a piece of the journal gets its name meanwhile
                    if path.stat().st_mode & 0o077:
                        open_to_others.append(path)
    finally:
        os.umask(before)
    assert len(kept) > 10
    assert open_to_others == []


def test_consumers_that_wait_do_not_hold_up_the_end(node: NodeProcess) -> None:
    answers: list[Answer] = []
    node.call("PUT", "/v1/topics/t")

    def wait(group: str) -> None:
        path = f"/v1/topics/t/groups/{group}/receive"
        answers.append(node.request("POST", path, {"wait": "60s"}))

    threads = [threading.Thread(target=wait, args=(f"g{n}",)) for n in range(10)]
    for thread in threads:
        thread.start()
    eventually(lambda: _waiting(node) >= 10)
    began = time.monotonic()
    node.terminate()
    assert_ends_quietly(node)
    assert time.monotonic() - began < STOP_S_MAX / 2
    for thread in threads:
        thread.join(STOP_S_MAX)
    assert [answer.status for answer in answers] == [503] * 10


def _waiting(node: NodeProcess) -> int:
    text = node.request("GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("goq_group_waiting_receives{")]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def test_a_second_signal_changes_nothing(node: NodeProcess) -> None:
    node.terminate()
    node.terminate()
    assert_ends_quietly(node)
