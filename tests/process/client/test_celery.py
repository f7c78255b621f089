"""A Celery worker over the SQS-compatible endpoint, as Celery itself speaks SQS."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess, clean_environment
from tests.support.node.ports import HOST, reserved_port

WAIT_S_MAX = 60.0
ORDERS = """
import os
import time
from pathlib import Path
from celery import Celery

if "BLOCKING" in os.environ:
    from kombu.transport.SQS import Transport

    Transport.implements = Transport.implements.extend(asynchronous=False)

app = Celery("orders", broker=f"sqs://goq:goq@{os.environ['SQS']}//")
app.conf.broker_transport_options = {
    "region": "us-east-1", "is_secure": False, "wait_time_seconds": 1,
    "visibility_timeout": int(os.environ.get("VISIBILITY_S", "60"))}
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True

@app.task(acks_late=True)
def slow(text):
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"began {text}\\n")
    time.sleep(2)
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(text + "\\n")

@app.task(bind=True)
def note(self, text, fails=False):
    if fails and self.request.retries == 0:
        raise self.retry(countdown=1)
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(text + "\\n")
"""
SEND = """
import orders

for number in range(5):
    orders.note.delay(f"task {number}")
orders.note.apply_async(("delayed",), countdown=2)
orders.note.delay("retried", True)
"""


SEND_SLOW = """
import orders

for number in range({count}):
    orders.slow.delay(f"task {{number}}")
"""


class Site:
    """A node with the endpoint, and the files of the workers that use it.

    With a short ``VISIBILITY_S`` a lease may end before a slow machine has done its task, which a
    worker then does once more. Else only what a dead worker had comes back, late.
    """

    def __init__(self, folder: Path, node: NodeProcess, port: int) -> None:
        (folder / "orders.py").write_text(ORDERS)
        self.node = node
        self.notes = folder / "notes"
        self.notes.touch()
        self.log = folder / "worker.log"
        own = {"SQS": f"{HOST}:{port}", "NOTES": str(self.notes), "PYTHONPATH": str(folder)}
        self.environment = clean_environment(folder) | own

    def send(self, script: str) -> None:
        command = [sys.executable, "-c", script]
        subprocess.run(command, env=self.environment, check=True, timeout=WAIT_S_MAX)

    def lines(self) -> list[str]:
        """The notes of the tasks, those that have only begun left out."""
        return [line for line in self.notes.read_text().splitlines() if "began" not in line]

    def wait_for(self, count: int) -> None:
        eventually(lambda: len(set(self.lines())) >= count, f"{count} tasks", seconds=WAIT_S_MAX)

    def wait_for_begin(self) -> None:
        eventually(lambda: "began" in self.notes.read_text(), "a task began", seconds=WAIT_S_MAX)

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker, which is killed at the end if it has not stopped."""
        arguments = ["-m", "celery", "-A", "orders", "worker", "--pool", "solo"]
        output: IO[bytes]
        with self.log.open("ab") as output:
            worker = subprocess.Popen(
                [sys.executable, *arguments],
                env=self.environment,
                stdout=output,
                stderr=output,
            )
            try:
                yield worker
            finally:
                worker.kill()
                worker.wait()

    def stop(self, worker: subprocess.Popen[bytes]) -> None:
        """Ask a worker to stop when it has finished its task, as Celery calls it: warmly."""
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT_S_MAX) == 0, self.log.read_text()

    def counts(self) -> tuple[int, int, int]:
        group = self.node.call("GET", "/v1/topics/celery/groups/sqs")
        return group["ready"] + group["retry"], group["leased"], group["scheduled"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        reserved_port() as port,
        NodeProcess(tmp_path / "data", settings=[f"sqs.listen={HOST}:{port}"]) as node,
    ):
        yield Site(tmp_path, node, port)


def test_tasks_run_once_also_delayed_and_retried_ones(site: Site) -> None:
    with site.worker() as worker:
        site.send(SEND)
        eventually(lambda: len(site.lines()) >= 7, "7 tasks", seconds=WAIT_S_MAX)
        site.stop(worker)
    tasks = [f"task {number}" for number in range(5)]
    assert sorted(site.lines()) == sorted([*tasks, "delayed", "retried"])
    assert site.counts() == (0, 0, 0)


@pytest.mark.long
def test_the_task_of_a_killed_worker_is_done_by_another(site: Site) -> None:
    site.environment["VISIBILITY_S"] = "5"
    site.send(SEND_SLOW.format(count=3))
    with site.worker() as worker:
        site.wait_for_begin()
        worker.kill()
        worker.wait()
        assert site.lines() == []
    with site.worker() as worker:
        site.wait_for(3)
        eventually(lambda: site.counts() == (0, 0, 0), seconds=WAIT_S_MAX)
        site.stop(worker)
    assert set(site.lines()) == {f"task {number}" for number in range(3)}


@pytest.mark.long
def test_a_worker_that_is_told_to_stop_finishes_its_task_and_leaves_the_others(
    site: Site,
) -> None:
    site.send(SEND_SLOW.format(count=4))
    with site.worker() as worker:
        site.wait_for_begin()
        site.stop(worker)
    done = site.lines()
    assert len(done) >= 1
    assert site.notes.read_text().count("began") == len(done), "no task was cut short"
    with site.worker() as worker:
        site.wait_for(4)
        site.stop(worker)
    assert sorted(site.lines()) == [f"task {number}" for number in range(4)]
    eventually(lambda: site.counts() == (0, 0, 0), seconds=WAIT_S_MAX)


@pytest.mark.long
def test_a_worker_with_the_blocking_client_goes_on_after_its_node_was_killed(site: Site) -> None:
    site.environment |= {"BLOCKING": "1", "VISIBILITY_S": "5"}
    site.send(SEND_SLOW.format(count=4))
    with site.worker() as worker:
        site.wait_for(1)
        site.node.restart()
        site.wait_for(4)
        site.send(SEND)
        eventually(lambda: {"delayed", "retried"} <= set(site.lines()), seconds=WAIT_S_MAX)
        eventually(lambda: site.counts() == (0, 0, 0), seconds=WAIT_S_MAX)
        site.stop(worker)
