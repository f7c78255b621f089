"""How a run ends, and what it leaves."""

from __future__ import annotations

import itertools
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import goq
from goq.errors import UsageError
from goq.worker import app as worker_app
from tests.support.client.interrupts import interrupted_at
from tests.support.client.worker_app import is_done, running, state_of
from tests.support.eventually import eventually

PROGRAM = """
import pathlib, sys, time, goq
app = goq.WorkerApp(sys.argv[1])

@app.worker("jobs", group="g", concurrency=2, visibility="10m")
def work(value: str):
    pathlib.Path("began-" + value).touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    pathlib.Path("ended-" + value).touch()

app.run()
print("returned")
"""


@contextmanager
def program(folder: Path, node: goq.Node) -> Iterator[subprocess.Popen[str]]:
    (folder / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "-P", "program.py", node.url],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def marks(folder: Path, what: str) -> list[str]:
    return sorted(path.name.partition("-")[2] for path in folder.glob(f"{what}-*"))


@pytest.mark.parametrize(
    ("number", "code", "output"),
    [(signal.SIGTERM, 0, "returned\n"), (signal.SIGINT, -signal.SIGINT, "")],
)
def test_a_signal_lets_functions_end_and_leaves_no_message_leased(
    goq_node: goq.Node,
    goq_client: goq.Client,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    output: str,
) -> None:
    goq_client.create_topic("jobs", 1)
    goq_client.publish_many("jobs", [b"1", b"2", b"3", b"4"])
    with program(tmp_path, goq_node) as process:
        eventually(lambda: marks(tmp_path, "began") == ["1", "2"], "two run")
        eventually(lambda: state_of(goq_client, "jobs")[1] == 4, "two wait")
        process.send_signal(number)
        eventually(lambda: state_of(goq_client, "jobs")[1] == 2, "those that wait are returned")
        (tmp_path / "go").touch()
        printed, _ = process.communicate(timeout=60)
        assert (process.returncode, printed) == (code, output)
    assert marks(tmp_path, "ended") == ["1", "2"]
    lag, leased, _ = state_of(goq_client, "jobs")
    assert (lag, leased) == (2, 0)


def test_a_second_sigterm_ends_the_program_at_once(
    goq_node: goq.Node, goq_client: goq.Client, tmp_path: Path
) -> None:
    goq_client.publish("jobs", b"1")
    with program(tmp_path, goq_node) as process:
        eventually(lambda: marks(tmp_path, "began") == ["1"], "it runs")

        def is_ended_by_signals() -> bool:
            process.send_signal(signal.SIGTERM)
            return process.poll() is not None

        eventually(is_ended_by_signals, "it ends", pause_s=0.1)
        assert process.returncode == -signal.SIGTERM


def test_a_handler_of_the_program_keeps_sigterm() -> None:
    app = goq.WorkerApp("http://127.0.0.1:1", retries=0, connect_retries=0)
    app.worker("orders", group="g")(print)
    for handler in (signal.SIG_IGN, signal.SIG_DFL):
        before = signal.signal(signal.SIGTERM, handler)
        try:
            with pytest.raises(goq.GoqError):
                app.run()
            assert signal.getsignal(signal.SIGTERM) is handler
        finally:
            signal.signal(signal.SIGTERM, before)


def test_an_app_that_was_stopped_may_run_again(goq_node: goq.Node, goq_client: goq.Client) -> None:
    app = goq.WorkerApp(goq_node.url)
    seen: list[bytes] = []

    @app.worker("again", group="g")
    def work(value: bytes) -> None:
        seen.append(value)
        app.stop()

    for value in (b"1", b"2"):
        goq_client.publish("again", value)
        app.run()
    assert seen == [b"1", b"2"]
    assert is_done(goq_client, "again")()
    app.stop()
    app.run()  # ends at once


def test_an_app_runs_once_at_a_time(goq_node: goq.Node, goq_client: goq.Client) -> None:
    app = goq.WorkerApp(goq_node.url)
    began = threading.Event()
    app.worker("once", group="g")(lambda message: began.set())
    goq_client.publish("once", b"1")
    with running(app) as errors:
        assert began.wait(60)
        with pytest.raises(UsageError, match="runs already"):
            app.run()
    assert errors == []


class StopsAtFirstRetry(logging.Handler):
    """Stops an app as soon as its client tells of a request that it tries again."""

    def __init__(self, app: goq.WorkerApp) -> None:
        super().__init__(logging.INFO)
        self.has_stopped = threading.Event()
        self._app = app

    def emit(self, record: logging.LogRecord) -> None:
        self._app.stop()
        self.has_stopped.set()


def test_a_stop_while_no_node_answers_ends_the_run_without_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_app, "_STOP_RETRIES_S", 0.0)
    app = goq.WorkerApp("http://127.0.0.1:1")
    app.worker("orders", group="g")(print)
    logger, stops = logging.getLogger("goq.client"), StopsAtFirstRetry(app)
    monkeypatch.setattr(logger, "handlers", [stops])
    caplog.set_level(logging.INFO, logger.name)
    with running(app) as errors:
        assert stops.has_stopped.wait(30)
    assert errors == []


def test_a_stop_ends_the_retries_of_a_program_that_is_told_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_app, "_STOP_RETRIES_S", 0.0)
    told: list[goq.GoqError] = []

    def on_retry(error: goq.GoqError, _failing_s: float) -> bool:
        told.append(error)
        return True

    with goq.Node.temporary() as node, node.client() as client:
        client.publish("orders", b"1")
        app = goq.WorkerApp(node.url, on_retry=on_retry)

        @app.worker("orders", group="g", visibility="1h")
        def work(_: bytes) -> None:
            node.close()
            eventually(lambda: told, "the loop misses its node")
            app.stop()

        with running(app) as errors:
            eventually(lambda: told, "it was told")
    assert errors == []


def test_a_message_that_is_done_during_a_stop_is_acknowledged_by_a_node_that_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_app, "_STOP_RETRIES_S", 60.0)
    nodes = [goq.Node(tmp_path / "data")]
    address = nodes[0].url.removeprefix("http://")
    app = goq.WorkerApp(nodes[0].url)
    back = threading.Thread(
        target=lambda: nodes.append(goq.Node(tmp_path / "data", listen=address))
    )

    @app.worker("orders", group="g", visibility="1h")
    def work(_: bytes) -> None:
        nodes[0].close()
        app.stop()
        back.start()

    with nodes[0].client() as client:
        client.publish("orders", b"1")
    app.run()
    back.join()
    with nodes[1], nodes[1].client() as client:
        assert state_of(client, "orders") == (0, 0, 0)


def test_an_interrupt_before_a_worker_has_begun_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = goq.WorkerApp("http://127.0.0.1:1")
    app.worker("orders", group="g")(print)
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name == "goq-worker":
            raise KeyboardInterrupt
        start(thread)

    def run() -> None:
        with pytest.raises(KeyboardInterrupt):
            app.run()

    running_it = threading.Thread(target=run, daemon=True)
    monkeypatch.setattr(threading.Thread, "start", start_others)
    running_it.start()
    running_it.join(30)
    assert not running_it.is_alive()


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer counts instructions too")
def test_an_app_may_run_again_after_an_interrupt_at_any_moment() -> None:
    for number in itertools.count(1):
        app = goq.WorkerApp("http://127.0.0.1:1")
        app.worker("orders", group="g")(print)
        app.stop()
        is_interrupted = interrupted_at(number, app.run, ("worker/app.py",))
        app.stop()
        app.run()
        if not is_interrupted:
            break
    assert number > 20
