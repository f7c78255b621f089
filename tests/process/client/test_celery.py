"""A Celery worker over the SQS-compatible endpoint, as Celery itself speaks SQS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess, clean_environment
from tests.support.node.ports import HOST, reserved_port

WAIT_S_MAX = 60.0
ORDERS = """
import os
from pathlib import Path
from celery import Celery

app = Celery("orders", broker=f"sqs://goq:goq@{os.environ['SQS']}//")
app.conf.broker_transport_options = {"region": "us-east-1", "is_secure": False}

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


def test_tasks_run_once_also_delayed_and_retried_ones(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(ORDERS)
    notes, log = tmp_path / "notes", tmp_path / "worker.log"
    notes.touch()
    with (
        reserved_port() as port,
        NodeProcess(tmp_path / "data", settings=[f"sqs.listen={HOST}:{port}"]) as node,
        log.open("wb") as output,
    ):
        own = {"SQS": f"{HOST}:{port}", "NOTES": str(notes), "PYTHONPATH": str(tmp_path)}
        environment = clean_environment(tmp_path) | own
        arguments = ["-m", "celery", "-A", "orders", "worker", "--pool", "solo"]
        worker = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=output, stderr=output
        )
        try:
            command = [sys.executable, "-c", SEND]
            subprocess.run(command, env=environment, check=True, timeout=WAIT_S_MAX)
            eventually(
                lambda: len(notes.read_text().splitlines()) >= 7, "7 tasks", seconds=WAIT_S_MAX
            )
            worker.terminate()
            assert worker.wait(WAIT_S_MAX) == 0, log.read_text()
        finally:
            worker.kill()
            worker.wait()
        tasks = [f"task {number}" for number in range(5)]
        assert sorted(notes.read_text().splitlines()) == sorted([*tasks, "delayed", "retried"])
        group = node.call("GET", "/v1/topics/celery/groups/sqs")
        assert (group["ready"], group["leased"], group["scheduled"]) == (0, 0, 0)
