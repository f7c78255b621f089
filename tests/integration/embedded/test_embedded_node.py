"""A node in the process of the program: ``goq.Node``, ``goq.open``, and the fixtures."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self, get_type_hints

import pytest

import goq
from goq.errors import DataDirLocked, UsageError

START_MS_MAX = 200
STARTS_MAX = 30


def test_a_temporary_node_serves_and_leaves_no_folder() -> None:
    with goq.Node.temporary() as node, node.client() as q:
        q.publish("orders", b"two teapots", key="order-1")
        (message,) = q.consume("orders", group="g", until_empty=True)
        assert (message.value, message.key) == (b"two teapots", b"order-1")
        message.ack()
        assert node.data_dir.is_dir()
    assert not node.data_dir.parent.exists()


def test_a_folder_keeps_its_messages_from_one_node_to_the_next(tmp_path: Path) -> None:
    with goq.open(tmp_path / "data") as q:
        q.publish("orders", b"1")
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        assert [message.value for message in q.read_log("orders")] == [b"1"]


def test_a_type_checker_knows_the_node_of_an_opened_client(tmp_path: Path) -> None:
    with goq.open(tmp_path / "data") as q:
        assert q.node.url.startswith("http://")
        assert get_type_hints(type(q).__enter__)["return"] is Self


def node_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "goq-node"}


def test_a_node_changes_nothing_of_its_process() -> None:
    before, threads = [signal.getsignal(n) for n in signal.valid_signals()], node_threads()
    with goq.Node.temporary():
        assert [signal.getsignal(n) for n in signal.valid_signals()] == before
        (own,) = node_threads() - threads
        assert own.daemon
    assert node_threads() == threads


def test_a_second_node_of_a_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with goq.open(tmp_path / "data") as q:
        with pytest.raises(DataDirLocked):
            goq.open(tmp_path / "data")
        q.publish("orders", b"1")


def test_settings_are_taken_by_name_and_a_wrong_one_is_named() -> None:
    node = goq.Node.temporary(settings={"defaults.topic.partitions": 2})
    with node, node.client() as q:
        assert len(q.create_topic("orders").partitions) == 2
        assert q.describe_topic("orders").settings["fsync"] == "never"
    with pytest.raises(UsageError, match="nope"):
        goq.Node.temporary(settings={"broker.nope": 1})


def test_a_node_is_ready_within_a_fifth_of_a_second() -> None:
    took_ms: list[float] = []
    while min(took_ms, default=START_MS_MAX) >= START_MS_MAX:
        assert len(took_ms) < STARTS_MAX, took_ms
        start_s = time.monotonic()
        with goq.Node.temporary():
            took_ms.append((time.monotonic() - start_s) * 1000)


def test_a_program_that_ends_without_closing_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    program = (
        "import goq, sys\nq = goq.open(sys.argv[1])\n"
        "q.publish('orders', b'1')\nprint(q.node.data_dir, flush=True)\n"
    )
    data_dir = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-c", program, data_dir], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", str(data_dir))
    with goq.open(data_dir) as q:
        assert [message.value for message in q.read_log("orders")] == [b"1"]


def test_a_forked_child_does_not_stop_the_node_of_its_parent(goq_node: goq.Node) -> None:
    program = (
        "import goq, os\nnode = goq.Node.temporary()\nchild = os.fork()\n"
        "if child == 0:\n    node.close()\n    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "with node.client() as q:\n    q.publish('orders', b'1')\n"
        "node.close()\nprint('stored')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.stdout == b"stored\n", done.stderr


def test_the_fixtures_give_a_node_and_a_client(goq_node: goq.Node, goq_client: goq.Client) -> None:
    goq_client.publish("of-one-test", b"1")
    assert goq_client.describe_topic("of-one-test").name == "of-one-test"
    assert goq_node.url.startswith("http://127.0.0.1:")


def test_topics_of_one_test_are_gone_in_the_next(goq_client: goq.Client) -> None:
    assert "of-one-test" not in {topic.name for topic in goq_client.list_topics()}


def test_pytest_of_a_program_finds_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(goq_client):\n"
        "    goq_client.publish('orders', b'1')\n"
        "    assert [m.value for m in goq_client.read_log('orders')] == [b'1']\n"
    )
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "goq.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "test_it.py",
    ]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, timeout=60)
    assert b"1 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_imports_nothing_of_a_node() -> None:
    program = (
        "import goq.pytest_plugin, sys\n"
        "print(sorted(m for m in sys.modules if m.startswith('goq') or m == 'numpy'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "['goq', 'goq.pytest_plugin']"
