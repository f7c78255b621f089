from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.cli.command import Run
from tests.support.node.running_node import RunningNode
from tests.support.paths import topic_dir


def test_the_doctor_verifies_a_folder_beside_its_node_and_finds_a_flipped_bit(
    goq: Run, topic: str, node: RunningNode, tmp_path: Path
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    goq("produce", topic, stdin=b"".join(b"line %d\n" % n for n in range(100)))
    report = json.loads(
        goq("doctor", "--verify", "--data-dir", str(node.data_dir), "--json").stdout
    )
    assert report["sound"]
    assert report["messages"] >= 100

    copy = tmp_path / "copy"
    shutil.copytree(node.data_dir, copy)
    [segment] = (topic_dir(copy, topic) / "0" / "messages").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    done = goq("doctor", "--verify", "--data-dir", str(copy), code=1)
    assert segment.name in done.stdout.decode()
    assert segment.read_bytes() == data


def test_a_folder_that_is_not_there_is_said(goq: Run, tmp_path: Path) -> None:
    done = goq("doctor", "--verify", "--data-dir", str(tmp_path / "none"), code=3)
    assert b"--data-dir" in done.stderr
