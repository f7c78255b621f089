"""``goq produce`` and ``goq consume`` while the node, or they themselves, are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from goq.client import Client
from tests.support.effort import first_of
from tests.support.eventually import eventually
from tests.support.ledger.ledger import read_log
from tests.support.node.node_process import NodeProcess, running_goq

LINES = 30_000
COMMAND_S_MAX = 60
VISIBILITY = "1s"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data") as serving:
        yield serving


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with Client(node.url, retries="20s") as client:
        yield client


def lines(count: int) -> list[bytes]:
    return [b"line %d of a file that is somewhat long" % number for number in range(count)]


def stored_count(client: Client) -> int:
    return sum(p.end_offset for p in client.describe_topic("lines").partitions)


def check_every_line_is_stored_once_and_in_order(client: Client, sent: list[bytes]) -> None:
    numbers = {line: number for number, line in enumerate(sent)}
    by_partition: dict[int, list[int]] = defaultdict(list)
    for message in read_log(client, "lines"):
        assert message.value is not None
        by_partition[message.partition].append(numbers[message.value])
    assert sorted(n for some in by_partition.values() for n in some) == list(range(len(sent)))
    assert all(some == sorted(some) for some in by_partition.values())


def test_produce_goes_on_when_the_node_is_killed_and_comes_back_and_stores_each_line_once(
    node: NodeProcess, client: Client
) -> None:
    sent = lines(LINES)
    client.create_topic("lines", 3)
    arguments = ("produce", "lines", "--batch", "500")
    with running_goq(node, *arguments, stdin=subprocess.PIPE) as produce:
        assert produce.stdin is not None
        pieces = [sent[start : start + LINES // 6] for start in range(0, LINES, LINES // 6)]
        feeder = threading.Thread(target=feed, args=(produce, pieces))
        feeder.start()
        try:
            for share in (0.1, 0.5):
                eventually(lambda share=share: stored_count(client) > share * LINES, "lines come")
                node.restart()
        finally:
            if produce.poll() is None and not feeder.is_alive():
                produce.wait(COMMAND_S_MAX)
            feeder.join(COMMAND_S_MAX)
        assert produce.wait(COMMAND_S_MAX) == 0
    check_every_line_is_stored_once_and_in_order(client, sent)


def feed(process: subprocess.Popen[bytes], pieces: list[list[bytes]]) -> None:
    assert process.stdin is not None
    for piece in pieces:
        process.stdin.write(b"".join(line + b"\n" for line in piece))
    process.stdin.close()


def test_produce_of_a_file_survives_a_kill_at_any_moment(
    node: NodeProcess, client: Client, tmp_path: Path
) -> None:
    sent = lines(LINES)
    path = tmp_path / "lines.txt"
    path.write_bytes(b"".join(line + b"\n" for line in sent))
    moment_s = random.SystemRandom().random() * 0.4
    client.create_topic("lines", 3)
    with running_goq(node, "produce", "lines", str(path), "--batch", "100") as produce:
        timer = threading.Timer(moment_s, node.kill)
        timer.start()
        timer.join()
        node.start()
        assert produce.wait(COMMAND_S_MAX) == 0, f"killed after {moment_s} s"
    check_every_line_is_stored_once_and_in_order(client, sent)


@contextmanager
def producing_without_node(
    node: NodeProcess, client: Client, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``goq produce`` that stored one line, and has another one since its node was killed."""
    client.create_topic("lines", 3)
    streams = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running_goq(node, "produce", "lines", *options, **streams) as produce:
        assert produce.stdin is not None
        produce.stdin.write(b"first\n")
        produce.stdin.flush()
        eventually(lambda: stored_count(client) == 1, "the first line is stored")
        node.kill()
        produce.stdin.write(b"second\n")
        yield produce


def test_produce_gives_up_after_the_time_that_it_was_given(
    node: NodeProcess, client: Client
) -> None:
    with producing_without_node(node, client, "--retry-for", "500ms") as produce:
        _, said = produce.communicate(timeout=COMMAND_S_MAX)
        assert produce.returncode == 5
        assert b"cannot connect to" in said


@pytest.mark.parametrize("end", ["the node comes back", "SIGINT"])
def test_produce_says_that_it_waits_for_the_node_and_does_until_it_is_back_or_interrupted(
    node: NodeProcess, client: Client, end: str
) -> None:
    with producing_without_node(node, client) as produce:
        assert produce.stdin is not None
        assert produce.stderr is not None
        produce.stdin.flush()
        assert produce.stderr.readline().startswith(b"goq: waiting for http://")
        if end == "SIGINT":
            produce.send_signal(signal.SIGINT)
            assert produce.wait(COMMAND_S_MAX) == 130
        else:
            node.start()
            produce.communicate(timeout=COMMAND_S_MAX)
            assert produce.returncode == 0
            assert stored_count(client) == 2


def test_a_consumer_says_that_it_waits_for_its_node_goes_on_with_it_and_can_be_interrupted(
    node: NodeProcess, client: Client
) -> None:
    client.create_topic("lines", 1)
    with consuming(node) as consume:
        for line in (b"first", b"second"):
            client.publish("lines", line)
            assert read_some(consume, len(line) + 1) == line + b"\n"
            node.kill()
            assert consume.stderr.readline().startswith(b"goq: waiting for http://")
            if line == b"first":
                node.start()
        consume.send_signal(signal.SIGINT)
        assert consume.wait(COMMAND_S_MAX) == 130


def publish_lines(client: Client) -> list[bytes]:
    sent = lines(LINES)
    client.create_topic("lines", 3)
    with client.producer("lines", batch=5000) as producer:
        producer.send_values(sent)
    return sent


AT_ONCE = ("--until-empty",)
WHEN_LEASES_ARE_OVER = ("--timeout", "5s", "--visibility", VISIBILITY)


def consume_rest(node: NodeProcess, options: Sequence[str]) -> list[bytes]:
    """Return what the next consumer of the group prints."""
    with running_goq(
        node, "consume", "lines", "--group", "g", *options, stdout=subprocess.PIPE
    ) as consume:
        printed, _ = consume.communicate(timeout=COMMAND_S_MAX)
        assert consume.returncode == 0
    return printed.splitlines()


def consuming(node: NodeProcess, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    arguments = ("consume", "lines", "--group", "g", *options)
    return running_goq(node, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def read_some(process: subprocess.Popen[bytes], size_bytes: int) -> bytes:
    """Return the next bytes; the rest stays in the pipe, and behind that the process waits."""
    assert process.stdout is not None
    found = b""
    while len(found) < size_bytes:
        piece = os.read(process.stdout.fileno(), size_bytes - len(found))
        assert piece, "the output ended too soon"
        found += piece
    return found


def test_lines_that_a_killed_consumer_did_not_print_come_to_the_next_one(
    node: NodeProcess, client: Client
) -> None:
    sent = publish_lines(client)
    with consuming(node, "--visibility", VISIBILITY) as consume:
        printed = read_some(consume, 500_000)
        consume.kill()
        rest, _ = consume.communicate(timeout=COMMAND_S_MAX)
    whole = (printed + rest).rpartition(b"\n")[0].splitlines()
    assert len(whole) < LINES
    assert set(whole) | set(consume_rest(node, WHEN_LEASES_ARE_OVER)) == set(sent)
    assert client.describe_group("lines", "g").lag == 0


def test_what_a_killed_consumer_held_is_there_long_before_its_leases_end(
    node: NodeProcess, client: Client
) -> None:
    sent = publish_lines(client)
    with consuming(node, "--visibility", "1h") as consume:
        printed = read_some(consume, 500_000)
        consume.kill()
        rest, _ = consume.communicate(timeout=COMMAND_S_MAX)
    eventually(lambda: not client.describe_group("lines", "g").leased, "nothing is leased")
    whole = (printed + rest).rpartition(b"\n")[0].splitlines()
    assert set(whole) | set(consume_rest(node, AT_ONCE)) == set(sent)
    assert client.describe_group("lines", "g").lag == 0


def test_a_command_whose_consumer_is_killed_is_run_again_by_another(
    node: NodeProcess, client: Client, tmp_path: Path
) -> None:
    client.publish("lines", b"work")
    begun = tmp_path / "begun"
    command = f"touch {begun}; while kill -0 $PPID 2>/dev/null; do sleep 0.05; done"
    with consuming(node, "--visibility", "1h", "--exec", command) as consume:
        eventually(begun.exists, "the command runs")
        consume.kill()
        consume.wait(COMMAND_S_MAX)
        eventually(lambda: not client.describe_group("lines", "g").leased, "it is given back")
    assert consume_rest(node, AT_ONCE) == [b"work"]


def test_consume_goes_on_when_the_node_is_killed_and_comes_back(
    node: NodeProcess, client: Client
) -> None:
    sent = publish_lines(client)
    with (
        consuming(node, "--visibility", VISIBILITY) as consume,
        ThreadPoolExecutor(1) as reading,
    ):
        printed = read_some(consume, 500_000)
        node.restart()
        assert consume.stdout is not None
        rest = reading.submit(consume.stdout.read)
        try:
            eventually(lambda: client.describe_group("lines", "g").lag == 0, "all is done")
        finally:
            consume.terminate()
        assert set((printed + rest.result()).splitlines()) == set(sent)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM], ids=lambda name: name.name)
@pytest.mark.parametrize("printed_bytes", first_of([300_000, 1], quick=1))
def test_an_interrupted_consumer_leaves_nothing_leased_and_nothing_that_it_printed(
    node: NodeProcess, client: Client, name: signal.Signals, printed_bytes: int
) -> None:
    sent = publish_lines(client)
    with consuming(node) as consume:
        printed = read_some(consume, printed_bytes)
        consume.send_signal(name)
        rest, said = consume.communicate(timeout=COMMAND_S_MAX)
        assert consume.returncode == 128 + name
        assert said == b""
    group = client.describe_group("lines", "g")
    first = (printed + rest).splitlines(keepends=True)
    assert group.leased == 0
    assert group.lag == LINES - len(first)
    assert all(line.endswith(b"\n") for line in first)
    second = consume_rest(node, AT_ONCE)
    assert Counter(line.rstrip(b"\n") for line in first) + Counter(second) == Counter(sent)


@pytest.mark.long
@pytest.mark.parametrize("number", range(30))
def test_a_consumer_interrupted_at_a_random_moment_prints_nothing_that_comes_again(
    node: NodeProcess, client: Client, number: int
) -> None:
    sent = publish_lines(client)
    moment_s = random.SystemRandom().random() * 0.5
    with consuming(node, "--prefetch", "100") as consume:
        printed = read_some(consume, 1)
        timer = threading.Timer(moment_s, consume.send_signal, [signal.SIGINT])
        timer.start()
        rest, said = consume.communicate(timeout=COMMAND_S_MAX)
        timer.join()
        assert consume.returncode == 130, f"interrupted after {moment_s} s"
        assert said == b""
    first = (printed + rest).splitlines()
    group = client.describe_group("lines", "g")
    assert (group.leased, group.lag) == (0, LINES - len(first)), f"after {moment_s} s"
    assert Counter(first) + Counter(consume_rest(node, AT_ONCE)) == Counter(sent)
