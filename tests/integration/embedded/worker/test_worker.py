"""Workers in Python: functions that handle the messages of a group."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import pytest

import goq
from goq.client import ReceivedMessage
from goq.errors import InvalidInput, NotAllowed, UsageError
from tests.support.client.worker_app import is_done, running, steps_of
from tests.support.eventually import eventually

COMMAND = (sys.executable, "-P", "-m", "goq_cli", "worker")


@dataclass
class Order:
    id: int
    teapots: int = 1


class Invoice(pydantic.BaseModel):
    order: int


def dead(client: goq.Client, topic: str) -> list[tuple[Any, Any]]:
    letters = client.list_dead_letters(topic).messages
    return [(letter.raw["value"], letter.raw["reason"]) for letter in letters]


@pytest.mark.parametrize("waits_for", ["node", "topic"])
def test_workers_that_wait_say_so_now_and_then(
    goq_node: goq.Node,
    goq_client: goq.Client,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    waits_for: str,
) -> None:
    monkeypatch.setattr("goq.worker.app._WARNED_AFTER_S", 0.5)
    app = goq.WorkerApp(goq_node.url if waits_for == "topic" else "http://127.0.0.1:1")
    ran: list[bytes] = []
    app.worker("comes-later", group="g")(lambda message: ran.append(message.value))
    app.worker("never-comes", group="g")(lambda message: ran.append(message.value))
    said = {"node": "127.0.0.1:1", "topic": "no topic '(comes-later|never-comes)'"}[waits_for]
    with running(app):
        eventually(lambda: re.search(f"no messages for .*{said}", caplog.text), "it is said")
        goq_client.publish("comes-later", b"1")
        if waits_for == "topic":
            eventually(lambda: ran == [b"1"], "the message is handled")
    assert caplog.text.count("no messages for") == 1


def test_a_function_gets_what_its_annotation_says(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)
    seen: dict[str, Any] = {}

    @app.worker("orders", group="g")
    def order(order: Order, message: ReceivedMessage) -> None:
        seen["order"], seen["attempt"] = order, message.attempt

    @app.worker("invoices", group="g")
    def invoice(invoice: Invoice) -> None:
        seen["invoice"] = invoice

    @app.worker("texts", group="g")
    def text(text: str) -> None:
        seen["text"] = text

    @app.worker("values", group="g")
    async def value(value: bytes) -> None:
        seen["value"] = value

    @app.worker("messages", group="g")
    def whole(message: ReceivedMessage) -> None:
        seen["key"] = message.key

    goq_client.publish("orders", b'{"id": 7}')
    goq_client.publish("invoices", b'{"order": 7}')
    goq_client.publish("texts", "caf\u00e9")
    goq_client.publish("values", b"\xff")
    goq_client.publish("messages", b"", key="k")
    with running(app):
        eventually(lambda: len(seen) == 6, "all were called", seconds=30)
        for topic in ("orders", "invoices", "texts", "values", "messages"):
            eventually(is_done(goq_client, topic), topic, seconds=30)
    assert seen == {
        "order": Order(7),
        "attempt": 1,
        "invoice": Invoice(order=7),
        "text": "caf\u00e9",
        "value": b"\xff",
        "key": b"k",
    }


def test_an_error_comes_again_and_a_declared_one_does_not(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)
    attempts: list[tuple[int, int]] = []

    @app.worker("failing", group="g", retry="10ms", reject_on=KeyError)
    def work(order: Order, message: ReceivedMessage) -> None:
        attempts.append((order.id, message.attempt))
        if order.id == 1 and message.attempt == 1:
            raise ValueError("not yet")
        if order.id == 2:
            raise KeyError("never")

    goq_client.publish_many("failing", [b'{"id": 1}', b'{"id": 2}', b"no JSON"])
    with running(app):
        eventually(lambda: len(attempts) == 3, "two attempts of the first", seconds=30)
        eventually(lambda: len(dead(goq_client, "failing")) == 2, "dead letters", seconds=30)
        eventually(is_done(goq_client, "failing"), "all is settled", seconds=30)
    assert sorted(attempts) == [(1, 1), (1, 2), (2, 1)]
    reasons = dict(dead(goq_client, "failing"))
    assert reasons['{"id": 2}'] == "KeyError: 'never'"
    assert reasons["no JSON"].startswith("does not decode")


@pytest.mark.parametrize("is_async", [False, True])
def test_so_many_run_at_once_but_never_two_of_a_key(
    goq_node: goq.Node, goq_client: goq.Client, is_async: bool
) -> None:
    app = goq.WorkerApp(goq_node.url)
    topic = f"many-{is_async}"
    together = threading.Barrier(3)
    order: list[bytes] = []
    lock = threading.Lock()

    def meet(value: bytes) -> None:
        if value.startswith(b"meet"):
            together.wait(30)
            return
        assert lock.acquire(blocking=False), "two of one key at once"
        time.sleep(0.01)
        order.append(value)
        lock.release()

    if is_async:
        import asyncio

        @app.worker(topic, group="g", concurrency=3)
        async def work(value: bytes) -> None:
            await asyncio.to_thread(meet, value)
    else:
        app.worker(topic, group="g", concurrency=3)(meet)
    goq_client.publish_many(topic, [b"meet 1", b"meet 2", b"meet 3"])
    goq_client.publish_many(topic, [goq.Message(b"%d" % n, b"k") for n in range(10)])
    with running(app):
        eventually(lambda: len(order) == 10, "all of the key", seconds=30)
        eventually(is_done(goq_client, topic), "all is settled", seconds=30)
    assert order == [b"%d" % n for n in range(10)]
    assert together.broken is False


def test_a_stop_lets_a_running_function_end_and_its_lease_lasts(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)
    began, attempts = threading.Event(), []

    @app.worker("long", group="g", visibility="2s")
    def work(message: ReceivedMessage) -> None:
        attempts.append(message.attempt)
        began.set()
        time.sleep(3)

    goq_client.publish_many("long", [b"1", b"2", b"3"])
    with running(app):
        assert began.wait(30)
    found: Any = goq_client.describe_group("long", "g").raw
    assert (attempts, found["lag"], found["leased"]) == ([1], 2, 0)


def test_a_stop_returns_a_message_that_was_not_begun_once_the_loop_takes_no_more(
    goq_node: goq.Node, goq_client: goq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = goq.WorkerApp(goq_node.url)
    began = threading.Event()
    release = goq.Client.release_many

    def release_slowly(client: goq.Client, messages: list[ReceivedMessage]) -> None:
        release(client, messages)
        time.sleep(0.3)  # time for it to come back

    monkeypatch.setattr(goq.Client, "release_many", release_slowly)

    @app.worker("returned", group="g")
    def work(_: ReceivedMessage) -> None:
        began.set()
        time.sleep(0.5)

    goq_client.create_topic("returned", 1)
    _, second = goq_client.publish_many("returned", [b"1", b"2"])
    with running(app):
        assert began.wait(30)
    assert steps_of(goq_client, second.id) == ["PUBLISHED", "DELIVERED", "RETURNED"]


def test_an_error_that_no_retry_helps_ends_the_run(goq_node: goq.Node) -> None:
    app = goq.WorkerApp(goq_node.url)
    app.worker("..", group="g")(print)
    with pytest.raises((InvalidInput, NotAllowed)):
        app.run()
    with pytest.raises(UsageError):
        goq.WorkerApp(goq_node.url).run()


def test_the_command_runs_an_app_and_ends_it_at_a_signal(
    goq_node: goq.Node, goq_client: goq.Client, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(
        "import goq, time\napp = goq.WorkerApp()\n"
        "@app.worker('jobs', group='g')\n"
        "def work(job: dict) -> None:\n"
        "    open('began', 'a').close()\n    time.sleep(1)\n    open('ended', 'a').close()\n"
    )
    goq_client.publish("jobs", json.dumps({"id": 1}))
    environment = {**os.environ, "GOQ_SERVER": goq_node.url, "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(
        [*COMMAND, "tasks:app"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        eventually((tmp_path / "began").exists, "the function runs", seconds=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert (tmp_path / "ended").exists()
    assert is_done(goq_client, "jobs")()


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("tasks:nope", 2, "goq: tasks has no goq.WorkerApp named 'nope'"),
        ("tasks", 2, "goq: 'tasks' is not MODULE:APP, as in tasks:app"),
        (".tasks:app", 2, "goq: '.tasks:app' is not MODULE:APP, as in tasks:app"),
        ("nope:app", 3, "goq: there is no module nope in"),
        ("nope.tasks:app", 3, "goq: there is no module nope.tasks in"),
        ("tasks.py:app", 3, "installed; is it tasks:app?"),
    ],
)
def test_an_app_that_is_not_there_is_told_in_a_line(
    name: str, code: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text("app = None\n")
    done = subprocess.run([*COMMAND, name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nope", "ModuleNotFoundError: No module named 'nope'"),
        ("import tasks.nope", "'tasks' is not a package"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
    ],
)
def test_a_program_that_cannot_be_imported_is_told_by_its_own_lines_alone(
    code: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(f"{code}\n")
    done = subprocess.run([*COMMAND, "tasks:app"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    first, *lines = done.stderr.splitlines()
    assert first == "goq: tasks cannot be imported"
    assert told in lines[-1]
    assert re.findall(r'File ".*?([^/]*)", line', done.stderr) == ["tasks.py"]
