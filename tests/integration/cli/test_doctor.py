from __future__ import annotations

import json
from pathlib import Path

from goq.storage.catalog.rows import DoubtKind, TopicDoubt
from tests.support.cli.command import Run
from tests.support.node.archive import roll
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir
from tests.support.storage.folder_copy import copy_in_use


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

    roll(node, topic)  # else the journal has the messages too, and the next start mends them
    copy = tmp_path / "copy"
    copy_in_use(node.data_dir, copy)
    segment, _active = sorted((topic_dir(copy, topic) / "0" / "messages").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    done = goq("doctor", "--verify", "--data-dir", str(copy), code=1)
    assert segment.name in done.stdout.decode()
    assert segment.read_bytes() == data


def test_a_folder_that_is_not_there_is_said(goq: Run, tmp_path: Path) -> None:
    done = goq("doctor", "--verify", "--data-dir", str(tmp_path / "none"), code=3)
    assert b"--data-dir" in done.stderr


def test_a_folder_is_named_only_to_be_verified(goq: Run, tmp_path: Path) -> None:
    done = goq("doctor", "--data-dir", str(tmp_path), code=2)
    assert b"--verify" in done.stderr
    assert done.stdout == b""


def test_the_doctor_says_of_a_topic_in_doubt_why_and_what_to_do(
    goq: Run, topic: str, node: RunningNode
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    broker = node.node.broker
    assert broker is not None
    doubt = TopicDoubt(DoubtKind.READ_ONLY, "its row is damaged")
    node.on_loop(lambda: broker.topics[topic].set_doubt(doubt))
    said = goq("doctor", code=1).stdout.decode()
    assert f"read-only: topic {topic}: its row is damaged" in said
    assert f"goq topic alter {topic}" in said
    assert json.loads(goq("doctor", "--json", code=1).stdout)["problems"][0]["state"] == "read-only"
    assert b"goq topic alter" in goq("produce", topic, stdin=b"x\n", code=5).stderr
    goq("topic", "alter", topic)
    goq("produce", topic, stdin=b"x\n")
    assert goq("doctor").stdout.endswith(b": ok\n")


def test_a_partition_that_is_online_can_be_reopened_and_one_that_is_not_there_cannot(
    goq: Run, topic: str
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    done = goq("topic", "reopen", topic, "0", "--json")
    assert json.loads(done.stdout) == {"reopened": f"{topic}:0"}
    goq("topic", "reopen", topic, "1", code=3)


def test_the_doctor_says_of_damage_what_it_is_and_what_to_do(goq: Run, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_node(data_dir) as node:
        goq("topic", "create", "t", "--partitions", "1", GOQ_SERVER=node.url)
        goq("produce", "t", stdin=b"kept\n", GOQ_SERVER=node.url)
    [segment] = (topic_dir(data_dir, "t") / "0" / "messages").glob("*.log")
    segment.unlink()
    with running_node(data_dir) as node:
        said = goq("doctor", code=1, GOQ_SERVER=node.url).stdout.decode()
    assert "degraded\ndamaged: t:0: stored bytes failed their check\n" in said
    assert "goq doctor --verify" in said
