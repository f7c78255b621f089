"""``goq consume --coproc``, whose worker answers each message, and ``--exec`` beside it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from goq.client import Client
from goq_cli.settlement.coproc_process import WINDOW_FIRST
from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq
from tests.support.eventually import eventually

Worker = Callable[[str], str]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """Return a command that runs ``body`` for each ``line`` of its stdin, without the newline."""
    numbers = iter(range(100))

    def write(body: str) -> str:
        path = tmp_path / f"worker{next(numbers)}.py"
        indented = "\n".join(f"    {line}" for line in body.splitlines())
        path.write_text(
            "import os, sys, time\n"
            "def say(text): print(text, flush=True)\n"
            f"for line in sys.stdin.buffer:\n    line = line[:-1]\n{indented}\n"
        )
        return shlex.join([sys.executable, str(path)])

    return write


@pytest.fixture
def client(environment: dict[str, str]) -> Iterator[Client]:
    with Client(environment["GOQ_SERVER"]) as client:
        yield client


def described(client: Client, topic: str) -> tuple[int, int, int]:
    found: Any = client.describe_group(topic, "g").raw
    return found["lag"], found["leased"], found["retry"]


def dead_letters(goq: Run, topic: str) -> list[dict[str, Any]]:
    """Return the dead letters of a topic, once there are some: they are copied after the answer."""
    found: list[dict[str, Any]] = []

    def has_some() -> bool:
        answer = json.loads(goq("dlq", "list", topic, "--json").stdout)
        found[:] = answer["messages"]
        return bool(found)

    eventually(has_some)
    return found


def test_each_message_is_settled_by_the_answer_to_it(
    goq: Run, topic: str, worker: Worker, client: Client, tmp_path: Path
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    goq("produce", topic, stdin=b"good\nlater\nbad\ngood\n")
    command = worker(
        "open('seen', 'ab').write(line + b'\\n')\n"
        "count = open('seen', 'rb').read().count(line)\n"
        "say('reject no good' if line == b'bad' else\n"
        "    'fail 10ms not yet' if line == b'later' and count == 1 else 'ok')"
    )
    options = ("--group", "g", "--coproc", command, "--max", "5")
    goq("consume", topic, *options, code=1)
    assert sorted((tmp_path / "seen").read_bytes().split()) == sorted(
        [b"good", b"later", b"bad", b"good", b"later"]
    )
    assert described(client, topic) == (0, 0, 0)
    dead = dead_letters(goq, topic)
    assert [(letter["cause"], letter["reason"]) for letter in dead] == [("rejected", "no good")]
    assert b"not yet" in goq("trace", f"{topic}:0:1", "--json").stdout


def test_one_worker_gets_many_messages(
    goq: Run, topic: str, worker: Worker, client: Client, tmp_path: Path
) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(5000))
    goq("produce", topic, stdin=lines)
    command = worker("open('out', 'ab').write(b'%d %s\\n' % (os.getpid(), line))\nsay('ok')")
    goq("consume", topic, "--group", "g", "--coproc", command, "--until-empty")
    written = (tmp_path / "out").read_bytes().splitlines()
    assert len({line.split()[0] for line in written}) == 1
    assert sorted(line.split(maxsplit=1)[1] for line in written) == sorted(lines.splitlines())
    assert described(client, topic) == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "record"),
    [
        (["--framing", "length"], b"7\ntwo\nend"),
        (["-0"], b"two\nend\0"),
        (["--framing", "length", "--format", r"%k:%v\n"], b"9\nk:two\nend"),
    ],
)
def test_a_value_with_a_newline_passes_in_other_framings(
    goq: Run, topic: str, tmp_path: Path, options: list[str], record: bytes
) -> None:
    goq("produce", topic, "-0", "--key", "k", stdin=b"two\nend\0")
    command = f"head -c {len(record)} > out; echo ok"
    goq("consume", topic, "--group", "g", "--coproc", command, *options, "--until-empty")
    assert (tmp_path / "out").read_bytes() == record


def test_a_record_that_does_not_fit_its_framing_fails_and_no_other_does(
    goq: Run, topic: str, worker: Worker, client: Client
) -> None:
    goq("topic", "create", topic, "--set", "delivery.max_attempts=1")
    goq("produce", topic, "-0", stdin=b"two\nlines\0one line\0")
    options = ("--group", "g", "--coproc", worker("say('ok')"), "--until-empty")
    done = goq("consume", topic, *options, code=1)
    assert b"the record has a newline" in done.stderr
    dead = dead_letters(goq, topic)
    assert [letter["value"] for letter in dead] == ["two\nlines"]


def test_json_is_a_line_whatever_the_value_has(
    goq: Run, topic: str, worker: Worker, tmp_path: Path
) -> None:
    goq("produce", topic, "-0", stdin=b"two\nlines\0")
    command = worker("open('out', 'ab').write(line)\nsay('ok')")
    goq("--json", "consume", topic, "--group", "g", "--coproc", command, "--until-empty")
    assert json.loads((tmp_path / "out").read_bytes())["value"] == "two\nlines"


def test_a_worker_that_crashes_fails_one_message_and_another_goes_on(
    goq: Run,
    topic: str,
    worker: Worker,
    client: Client,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    goq("produce", topic, stdin=b"a\npoison\nb\nc\nd\n")
    goq("group", "set", "g", "--topic", topic, "max_attempts=2")
    command = worker(
        "open('out', 'ab').write(line + b'\\n')\nif line == b'poison': os._exit(9)\nsay('ok')"
    )
    words = ["--group", "g", "--coproc", command, "--retry-delay", "10ms"]
    with start_goq(
        ["consume", topic, *words], env=environment, cwd=tmp_path, stderr=subprocess.PIPE
    ) as consumer:
        eventually(lambda: described(client, topic) == (0, 0, 0), "all is settled", seconds=30)
        consumer.send_signal(signal.SIGINT)
        _, err = consumer.communicate(timeout=30)
    assert b"the worker ended with 9" in err
    dead = dead_letters(goq, topic)
    assert [(letter["value"], letter["attempts"]) for letter in dead] == [("poison", 2)]
    seen = (tmp_path / "out").read_bytes().split()
    assert sorted(seen) == sorted([b"a", b"poison", b"poison", b"b", b"c", b"d"])


def test_a_command_that_cannot_run_costs_no_message_an_attempt(
    goq: Run, topic: str, client: Client
) -> None:
    goq("produce", topic, stdin=b"a\nb\n")
    options = ("--group", "g", "--coproc", "goq-has-no-such-program", "--until-empty")
    done = goq("consume", topic, *options, code=2)
    assert b"goq-has-no-such-program" in done.stderr
    assert described(client, topic) == (2, 0, 0)
    again = goq("consume", topic, "--group", "g", "--until-empty", "--format", r"%a\n")
    assert again.stdout == b"1\n1\n"


def test_an_answer_that_is_none_ends_the_worker_and_fails_its_message(
    goq: Run, topic: str, worker: Worker, client: Client
) -> None:
    goq("topic", "create", topic, "--set", "delivery.max_attempts=1")
    goq("produce", topic, stdin=b"a\n")
    command = worker("say('okay')")
    done = goq("consume", topic, "--group", "g", "--coproc", command, "--until-empty", code=1)
    assert b"'okay' is no answer" in done.stderr
    dead = dead_letters(goq, topic)
    assert "okay" in dead[0]["reason"]


def test_messages_of_a_key_go_to_one_worker_in_their_order(
    goq: Run, topic: str, worker: Worker, tmp_path: Path
) -> None:
    lines = [f"k{n % 7}:{n}" for n in range(700)]
    goq("produce", topic, "--key-sep", ":", stdin="".join(f"{line}\n" for line in lines).encode())
    command = worker("open(str(os.getpid()), 'ab').write(line + b'\\n')\nsay('ok')")
    form = ("--format", "%k:%v", "--jobs", "3")
    goq("consume", topic, "--group", "g", "--coproc", command, *form, "--until-empty")
    outputs = [path.read_text().split() for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(outputs) > 1
    for key in {line.partition(":")[0] for line in lines}:
        (found,) = [
            [line for line in output if line.startswith(f"{key}:")]
            for output in outputs
            if any(line.startswith(f"{key}:") for line in output)
        ]
        assert found == [line for line in lines if line.startswith(f"{key}:")]


def test_an_interrupt_settles_what_was_answered_and_gives_the_rest_back(
    goq: Run,
    topic: str,
    worker: Worker,
    client: Client,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    goq("produce", topic, stdin=b"".join(b"line %d\n" % n for n in range(500)))
    log = tmp_path / "out"
    command = worker(f"time.sleep(0.02)\nopen({str(log)!r}, 'ab').write(line + b'\\n')\nsay('ok')")
    options = ["--group", "g", "--visibility", "10m", "--coproc", command]
    with start_goq(["consume", topic, *options], env=environment) as consumer:
        eventually(lambda: log.exists() and log.read_bytes().count(b"\n") > 20, "answers")
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(30) == 130
    done = log.read_bytes().splitlines()
    lag, leased, retry = described(client, topic)
    assert (lag, leased, retry) == (500 - len(done), 0, 0)
    rest = goq("consume", topic, "--group", "g", "--until-empty", "--format", r"%a %v\n").stdout
    assert {line.split()[0] for line in rest.splitlines()} == {b"1"}
    again = {line.split(maxsplit=1)[1] for line in rest.splitlines()}
    assert again.isdisjoint(done)
    assert len(again) + len(done) == 500


def test_a_worker_that_leaves_a_process_behind_is_seen_to_end(
    goq: Run, topic: str, client: Client, tmp_path: Path
) -> None:
    goq("produce", topic, stdin=b"one\n")
    command = f"sleep 600 2> {os.devnull} & echo $! >> pids; read -r line; echo ok"
    try:
        goq("consume", topic, "--group", "g", "--coproc", command, "--max", "1")
    finally:
        for pid in (tmp_path / "pids").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it ended with the worker
                os.kill(int(pid), signal.SIGKILL)
    assert described(client, topic) == (0, 0, 0)


def test_a_second_interrupt_ends_a_worker_that_hangs(
    goq: Run, topic: str, client: Client, environment: dict[str, str]
) -> None:
    goq("produce", topic, stdin=b"".join(b"line %d\n" % n for n in range(50)))
    goq("group", "set", "g", "--topic", topic, "visibility_timeout=10m")
    options = ["--group", "g", "--coproc", "sleep 600"]
    with start_goq(["consume", topic, *options], env=environment) as consumer:
        try:
            eventually(lambda: described(client, topic)[1] > WINDOW_FIRST, "it has messages")
            consumer.send_signal(signal.SIGINT)
            eventually(lambda: described(client, topic)[1] <= WINDOW_FIRST, "the loop has ended")
            assert consumer.poll() is None
            consumer.send_signal(signal.SIGINT)
            assert consumer.wait(60) == 130
        finally:
            consumer.kill()
    assert described(client, topic)[:2] == (50, 0)


def test_two_commands_never_have_messages_of_one_key_at_once(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    goq("produce", topic, "--key", "k", stdin=b"".join(b"%d\n" % n for n in range(20)))
    command = "mkdir busy || touch clash; read -r n; echo $n >> out; rmdir busy"
    goq("consume", topic, "--group", "g", "--exec", command, "--jobs", "4", "--until-empty")
    assert not (tmp_path / "clash").exists()
    assert (tmp_path / "out").read_text().split() == [str(n) for n in range(20)]


@pytest.mark.parametrize(
    "options",
    [
        ["--coproc", "cat"],
        ["--coproc", "cat", "--exec", "cat", "--group", "g"],
        ["--coproc", "cat", "--framing", "word", "--group", "g"],
    ],
)
def test_options_of_workers_that_do_not_go_together_are_refused(
    goq: Run, topic: str, options: list[str]
) -> None:
    goq("consume", topic, *options, code=2)
