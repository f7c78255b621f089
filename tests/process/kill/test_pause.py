"""A node that stands still past due times and deadlines, and a folder that two nodes want."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from goq.client import Client
from tests.support.eventually import eventually
from tests.support.node.node_process import GOQ, NodeProcess, clean_environment


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_what_is_due_while_the_node_stands_still_comes_once_and_not_early(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node, Client(node.url) as client:
        client.create_topic("t", 2, {"delivery.max_attempts": "none"})
        client.publish("t", b"leased")
        [held] = client.receive("t", "g", visibility="400ms", wait="5s")
        due_ms = _now_ms() + 400
        delayed = [b"%d" % n for n in range(50)]
        for value in delayed:
            client.publish("t", value, deliver_at=due_ms)
        later_ms = _now_ms() + 1500
        client.publish("t", b"later", deliver_at=later_ms)
        with node.paused():
            eventually(lambda: _now_ms() > due_ms + 200, "the due time has passed")
        seen: list[tuple[bytes, int]] = []

        def all_came() -> bool:
            found = client.receive("t", "g", wait="100ms")
            seen.extend((m.value or b"", m.attempt) for m in found)
            assert _now_ms() >= later_ms or (b"later", 1) not in seen
            client.ack_many(found)
            return len(seen) >= len(delayed) + 2

        eventually(all_came, "everything was received")
        assert sorted(seen) == sorted([(v, 1) for v in delayed] + [(b"leased", 2), (b"later", 1)])
        assert client.ack("t", "g", [held.receipt]).done == 0
        assert client.receive("t", "g") == []


def test_a_second_node_is_refused_a_folder_and_the_first_works_on(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node, Client(node.url) as client:
        client.publish("t", b"before")
        where = ["--data-dir", str(node.folder), "--listen", "127.0.0.1:0"]
        second = subprocess.run(
            [*GOQ, "serve", *where],
            capture_output=True,
            env=clean_environment(tmp_path),
            timeout=30,
            check=False,
        )
        assert second.returncode != 0
        assert b"Traceback" not in second.stderr
        client.publish("t", b"after")
        assert sorted(m.value or b"" for m in client.receive("t", "g")) == [b"after", b"before"]
