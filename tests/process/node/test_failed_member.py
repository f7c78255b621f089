"""A node whose member of the cluster cannot write its log any more."""

from __future__ import annotations

import resource
import secrets
from pathlib import Path

from goq import limits
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess
from tests.support.node.ports import HOST, reserved_port

FILE_BYTES = 64 * limits.KIB
WAIT_S = 60.0


def test_it_ends_so_that_it_is_started_again_and_then_takes_part(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    with reserved_port() as port:
        settings = [
            "broker.node_id=n1",
            f"cluster.listen={HOST}:{port}",
            f"cluster.peers=n1={HOST}:{port}",
            f"cluster.secret_file={secret}",
        ]
        with NodeProcess(tmp_path / "data", settings=settings) as node:
            node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
            for number in range(10):  # together longer than a file may be from now on
                node.call("PUT", f"/v1/schedules/s{number}", schedule("x" * (FILE_BYTES // 9)))
            resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
            node.request("PUT", "/v1/schedules/c", schedule("c"))
            eventually(lambda: not node.is_running, "it ends", seconds=WAIT_S)
            assert node.process is not None
            assert node.process.returncode == 7
            assert "this member of the cluster has stopped" in node.log_text()
            node.start()
            node.call("PUT", "/v1/schedules/d", schedule("d"))


def schedule(value: str) -> dict[str, object]:
    return {"topic": "t", "every": "1h", "messages": [{"value": value}]}
