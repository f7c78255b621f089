"""The page of the SQS-compatible endpoint: its commands and its Python run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.node.node_process import NodeProcess, clean_environment
from tests.support.node.ports import HOST, reserved_port
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "sqs.md"


def test_the_client_of_the_page_sends_and_receives(tmp_path: Path) -> None:
    text = PAGE.read_text()
    [command] = re.findall(r"```sh\ngoq serve (.*)\n```", text)
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    with reserved_port() as port, reserved_port() as sqs_port:
        where = ["--data-dir", str(tmp_path / "data"), "--listen", f"{HOST}:{port}"]
        words = command.replace("127.0.0.1:9324", f"{HOST}:{sqs_port}").split()
        arguments = ["serve", *where, *words]
        with NodeProcess(tmp_path / "data", port=port, arguments=arguments) as node:
            done = subprocess.run(
                [sys.executable, "-c", code.replace("127.0.0.1:9324", f"{HOST}:{sqs_port}")],
                env=clean_environment(tmp_path),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
            message_id, body = done.stdout.split(" ", 1)
            assert body == "two teapots\n"
            trace = node.call("GET", f"/v1/messages/{message_id}/trace")
            assert "ACKNOWLEDGED" in {event["event"] for event in trace["events"]}
