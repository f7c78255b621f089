"""A node in a process of its own, as a service manager runs it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.eventually import eventually

STOP_S_MAX = 10.0
SCRIPT = """
import sys
from pathlib import Path
from goq.config.node import Config
from goq.node import run
run(Config(broker={"data_dir": Path(sys.argv[1]), "listen": "127.0.0.1:0"}),
    lambda url: print(url, flush=True))
"""


@contextmanager
def node_process(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(data_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip().removeprefix("http://")
        finally:
            if process.poll() is None:
                process.kill()


def stopped(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end; return the exit code and what was said on stderr."""
    _, complaints = process.communicate(timeout=STOP_S_MAX)
    return process.returncode, complaints


def call(host: str, method: str, path: str, body: object = None) -> tuple[int, object]:
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_node_quietly(tmp_path: Path, number: signal.Signals) -> None:
    with node_process(tmp_path) as (process, host):
        assert call(host, "GET", "/readyz")[0] == 200
        process.send_signal(number)
        assert stopped(process) == (0, "")


def test_a_publish_under_way_is_answered_and_kept(tmp_path: Path) -> None:
    """Several clients publish without end; what was answered is there after the restart."""
    answered: list[int] = []
    refused: list[object] = []

    def produce(host: str) -> None:
        try:
            while True:
                status, body = call(
                    host, "POST", "/v1/topics/t/messages", {"messages": [{"value": "x"}]}
                )
                (answered if status == 200 else refused).append(status if status == 200 else body)
        except (OSError, http.client.HTTPException) as error:
            last.append(error)

    last: list[BaseException] = []
    with node_process(tmp_path) as (process, host):
        threads = [threading.Thread(target=produce, args=(host,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(answered) >= 50)
        process.send_signal(signal.SIGTERM)
        assert stopped(process) == (0, "")
        for thread in threads:
            thread.join(STOP_S_MAX)
    assert not refused
    assert {type(error) for error in last} <= {
        BrokenPipeError,
        ConnectionRefusedError,
        ConnectionResetError,
        http.client.RemoteDisconnected,
    }
    with node_process(tmp_path) as (process, host):
        _, topic = call(host, "GET", "/v1/topics/t")
        assert isinstance(topic, dict)
        stored = sum(partition["end_offset"] for partition in topic["partitions"])
        assert stored >= len(answered)
        process.terminate()
        assert stopped(process) == (0, "")


def test_consumers_that_wait_do_not_hold_up_the_end(tmp_path: Path) -> None:
    answers: list[tuple[int, object]] = []
    with node_process(tmp_path) as (process, host):
        assert call(host, "PUT", "/v1/topics/t")[0] == 200

        def wait(group: str) -> None:
            path = f"/v1/topics/t/groups/{group}/receive"
            answers.append(call(host, "POST", path, {"wait": "60s"}))

        threads = [threading.Thread(target=wait, args=(f"g{n}",)) for n in range(10)]
        for thread in threads:
            thread.start()
        eventually(lambda: _waiting(host) >= 10)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert stopped(process) == (0, "")
        assert time.monotonic() - began < STOP_S_MAX / 2
        for thread in threads:
            thread.join(STOP_S_MAX)
    assert [status for status, _ in answers] == [503] * 10


def _waiting(host: str) -> int:
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    lines = [line for line in text.splitlines() if line.startswith("goq_group_waiting_receives{")]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def test_a_second_signal_changes_nothing(tmp_path: Path) -> None:
    with node_process(tmp_path) as (process, _):
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGTERM)
        assert stopped(process) == (0, "")
