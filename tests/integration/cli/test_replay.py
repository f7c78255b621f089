from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goq.client import Client
from goq.units import format_time_us
from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq

ALL = ("--from-offset", "0")


@pytest.fixture
def client(environment: dict[str, str]) -> Iterator[Client]:
    with Client(environment["GOQ_SERVER"]) as client:
        yield client


@pytest.fixture
def lines(goq: Run, topic: str) -> list[str]:
    """What a topic of three partitions has, in many frames and of five keys."""
    goq("topic", "create", topic, "--partitions", "3")
    lines = [f"k{n % 5}:line {n}" for n in range(200)]
    text = "".join(f"{line}\n" for line in lines)
    goq("produce", topic, "--key-sep", ":", "--batch", "10", stdin=text.encode())
    return [line.partition(":")[2] for line in lines]


def printed(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return done.stdout.decode().splitlines()


def test_a_range_of_times_is_printed_exactly_and_counted_on_stderr(
    goq: Run, topic: str, lines: list[str], client: Client
) -> None:
    log = list(client.read_log(topic))
    times = sorted({message.timestamp for message in log})
    start, end = times[2], times[9]
    bounds = ("--from-time", format_time_us(start), "--to-time", format_time_us(end))
    done = goq("replay", topic, *bounds)
    wanted = [m.value.decode() for m in log if start <= m.timestamp < end and m.value]
    assert printed(done) == wanted
    assert done.stderr.decode() == f"{len(wanted)} messages replayed\n"
    again = goq("replay", topic, "--from-time", "-1h", "--format", r"%T %i\n")
    assert printed(again) == [f"{format_time_us(m.timestamp)} {m.id}" for m in log]
    assert len(printed(again)) == len(lines)


def test_a_replay_to_a_time_of_a_compacted_topic_says_that_values_may_lack(
    goq: Run, topic: str
) -> None:
    goq("topic", "create", topic, "--partitions", "1", "--set", "cleanup=compact")
    goq("produce", topic, "--key-sep", ":", stdin=b"apple:10\n")
    for option in ("--as-of", "--to-time"):
        done = goq("replay", topic, *ALL, option, "now")
        assert f"goq: {topic} is compacted: " in done.stderr.decode()
    assert b"compacted" not in goq("replay", topic, *ALL).stderr


def test_only_a_key_a_partition_some_offsets_or_the_first_are_printed(
    goq: Run, topic: str, lines: list[str], client: Client
) -> None:
    log = list(client.read_log(topic))
    by_key = printed(goq("replay", topic, *ALL, "--key", "k3"))
    assert by_key == [line for n, line in enumerate(lines) if n % 5 == 3]
    some = goq("replay", topic, "--from-offset", "2", "--to-offset", "5", "--format", r"%i\n")
    assert printed(some) == [str(m.id) for m in log if 2 <= m.offset < 5]
    one = goq("replay", topic, *ALL, "--partition", "1", "--format", r"%p\n")
    assert set(printed(one)) <= {"1"}
    first = goq("replay", topic, *ALL, "--max", "3", "--raw", "--null")
    assert len(first.stdout.split(b"\0")) == 4
    assert first.stderr == b"3 messages replayed\n"
    objects = [json.loads(line) for line in printed(goq("replay", topic, *ALL, "--json"))]
    assert [o["id"] for o in objects] == [str(m.id) for m in log]


def test_an_empty_range_prints_nothing(goq: Run, topic: str, lines: list[str]) -> None:
    done = goq("replay", topic, "--from-time", "2020-01-01", "--to-time", "2020-01-02")
    assert (done.stdout, done.stderr) == (b"", b"0 messages replayed\n")
    assert lines


def test_a_topic_that_does_not_exist_is_not_found(goq: Run, topic: str) -> None:
    for more in ((), ("--into", f"{topic}-copy"), ("--group", "g"), ("--dry-run",)):
        done = goq("replay", topic, *ALL, *more, code=3)
        assert b"Traceback" not in done.stderr
    goq("topic", "show", f"{topic}-copy", code=3)


def test_into_a_topic_it_says_how_to_go_on_and_that_does_nothing_twice(
    goq: Run, topic: str, lines: list[str], client: Client
) -> None:
    copy = f"{topic}-copy"
    goq("topic", "create", copy, "--partitions", "3")
    done = goq("replay", topic, "--from-time", "-1h", "--key", "k1", "--into", copy)
    told = done.stderr.decode().splitlines()
    assert told[-1] == f"40 messages stored in {copy}"
    command = shlex.split(told[1])
    assert command[:3] == ["goq", "replay", topic]
    assert re.search(r"--from-time \d{4}-\S+Z --to-time \d{4}-\S+Z --key k1 --into", told[1])
    goq("produce", topic, "--key", "k1", stdin=b"later\n")
    again = goq(*command[1:]).stderr.decode().splitlines()
    assert again[1].split() == told[1].split()
    assert again[-1] == f"0 messages stored in {copy}, 40 were there already"
    assert [m.value.decode() for m in client.read_log(copy) if m.value] == [
        line for n, line in enumerate(lines) if n % 5 == 1
    ]


def test_into_a_topic_as_json_is_one_document(goq: Run, topic: str, lines: list[str]) -> None:
    done = goq("replay", topic, *ALL, "--into", f"{topic}-copy", "--json")
    answer = json.loads(done.stdout)
    assert (answer["stored"], answer["known"]) == (len(lines), 0)
    assert (answer["topic"], answer["into"]) == (topic, f"{topic}-copy")
    assert answer["to_time"]


def test_into_itself_is_refused(goq: Run, topic: str, lines: list[str]) -> None:
    done = goq("replay", topic, *ALL, "--into", topic, "--json", code=7)
    problem = json.loads(done.stderr.splitlines()[-1])
    assert (problem["code"], problem["field"]) == ("invalid_input", "into")
    assert lines


def test_a_dry_run_counts_and_copies_nothing(goq: Run, topic: str, lines: list[str]) -> None:
    copy = f"{topic}-copy"
    answer = goq("replay", topic, *ALL, "--into", copy, "--dry-run", "--json").stdout
    assert json.loads(answer)["messages"] == len(lines)
    table = printed(goq("replay", topic, *ALL, "--dry-run"))
    assert table[0] == "partition\tmessages"
    assert sum(int(row.split("\t")[1]) for row in table[1:]) == len(lines)
    goq("topic", "show", copy, code=3)


def test_a_dry_run_counts_no_more_than_would_be_printed(
    goq: Run, topic: str, lines: list[str]
) -> None:
    done = goq("replay", topic, *ALL, "--max", "7", "--dry-run", "--json")
    assert json.loads(done.stdout)["messages"] == 7 < len(lines)


def test_the_command_that_goes_on_asks_the_same_servers(
    goq: Run, topic: str, environment: dict[str, str], tmp_path: Path
) -> None:
    goq("produce", topic, stdin=b"a\n")
    (tmp_path / "token").write_text("none")
    goq("context", "set", "here", "--server", environment["GOQ_SERVER"])
    goq("context", "set", "elsewhere", "--server", "http://127.0.0.1:1")
    given = ("--context", "here", "--token-file", "token", "--token", "secret")
    done = goq(*given, "replay", topic, *ALL, "--into", f"{topic}-copy", GOQ_SERVER="")
    command = shlex.split(done.stderr.decode().splitlines()[1])
    assert command[:5] == ["goq", "--context", "here", "--token-file", "token"]
    again = goq(*command[1:], GOQ_SERVER="").stderr.decode()
    assert again.endswith(f"0 messages stored in {topic}-copy, 1 were there already\n")


def test_a_copy_is_finished_although_the_reader_of_stderr_has_ended(
    goq: Run, topic: str, lines: list[str], environment: dict[str, str], client: Client
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    copy = f"{topic}-copy"
    words = ["replay", topic, *ALL, "--into", copy]
    try:
        with start_goq(words, stderr=writing, env=environment) as replay:
            assert replay.wait(timeout=60) == 0
    finally:
        os.close(writing)
    assert len(list(client.read_log(copy))) == len(lines)


def test_a_group_is_rewound_and_stops_at_the_end(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    for value in "abcde":
        goq("produce", topic, stdin=value.encode() + b"\n")
    consume = ("consume", topic, "--group", "g", "--until-empty")
    assert printed(goq(*consume)) == list("abcde")
    bounds = ("--from-offset", "1", "--to-offset", "4")
    table = printed(goq("replay", topic, *bounds, "--group", "g", "--dry-run"))
    assert table == [
        "partition\tcursor\tto\tend\tredelivers\tskips\twithholds\tvoids",
        "0\t5\t1\t4\t3\t0\t1\t0",
    ]
    assert printed(goq(*consume)) == []
    goq("replay", topic, *bounds, "--group", "g")
    shown = printed(goq("group", "show", "g", "--topic", topic))
    columns, row = shown[2].split("\t"), shown[3].split("\t")
    assert dict(zip(columns, row, strict=True))["end"] == "4"
    goq("produce", topic, stdin=b"f\n")
    assert printed(goq(*consume)) == list("bcd")
    goq("group", "reset", "g", "--topic", topic, "--to", "3")
    assert printed(goq(*consume)) == list("def")
    assert "end" not in printed(goq("group", "show", "g", "--topic", topic))[2].split("\t")


def test_a_group_is_rewound_to_a_time_in_one_partition(
    goq: Run, topic: str, lines: list[str]
) -> None:
    arguments = ("--from-time", "-1h", "--to-time", "now", "--partition", "2", "--group", "g")
    answer = json.loads(goq("replay", topic, *arguments, "--json").stdout)
    assert [(p["partition"], p["to"]) for p in answer["partitions"]] == [(2, 0)]
    assert answer["partitions"][0]["withholds"] == 0
    assert lines


def test_a_group_is_rewound_to_a_time_in_milliseconds(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    goq("produce", topic, stdin=b"a\nb\n")
    times = ("--from-time", "1736937000000", "--to-time", "4102444800000")
    goq("replay", topic, *times, "--group", "g")
    assert printed(goq("consume", topic, "--group", "g", "--until-empty")) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--from-time or --from-offset"),
        (("--to-time", "now"), "--from-time or --from-offset"),
        ((*ALL, "--into", "x", "--group", "g"), "one of them"),
        ((*ALL, "--into", "x", "--max", "3"), "stdout"),
        ((*ALL, "--group", "g", "--raw"), "stdout"),
        ((*ALL, "--group", "g", "--key", "k"), "--group"),
        ((*ALL, "--group", "g", "--rate", "5"), "--group"),
        ((*ALL, "--from-time", "now", "--group", "g"), "not both"),
        ((*ALL, "--to-offset", "3", "--to-time", "now", "--group", "g"), "not both"),
        ((*ALL, "--rate", "fast"), "--rate"),
        ((*ALL, "--format", "%z"), "%z"),
        (("--from-offset", "-1"), "--from-offset"),
    ],
)
def test_options_that_do_not_go_together_are_explained(
    goq: Run, topic: str, arguments: tuple[str, ...], told: str
) -> None:
    goq("topic", "create", topic)
    assert told in goq("replay", topic, *arguments, code=2).stderr.decode()


def test_a_time_that_is_none_is_named(goq: Run, topic: str, lines: list[str]) -> None:
    done = goq("replay", topic, "--from-time", "yesterday", code=7)
    assert b"from_time" in done.stderr
    assert lines


def test_a_closed_pipe_ends_quietly(goq: Run, topic: str, environment: dict[str, str]) -> None:
    goq("produce", topic, stdin=b"".join(b"line %d\n" % n for n in range(50_000)))
    line = f"{sys.executable} -P -m goq_cli replay {topic} --from-offset 0 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}}"],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split(b"\n")[1] == b"0"
    assert done.stderr == b""


def test_a_copy_that_is_interrupted_ends_with_130_and_goes_on_where_it_was(
    goq: Run, topic: str, lines: list[str], environment: dict[str, str], client: Client
) -> None:
    copy = f"{topic}-copy"
    words = ("replay", topic, *ALL, "--to-time", "now", "--partition", "0", "--into", copy)
    goq("topic", "create", copy, "--partitions", "3")
    replay = start_goq([*words, "--rate", "1"], stderr=subprocess.PIPE, env=environment)
    assert replay.stderr is not None
    command = [replay.stderr.readline(), replay.stderr.readline()][1].decode()
    while not client.describe_topic(copy).partitions[0].end_offset:
        assert replay.poll() is None
    replay.send_signal(signal.SIGINT)
    _, errors = replay.communicate(timeout=30)
    assert (replay.returncode, errors) == (130, b"")
    *again, option, rate = shlex.split(command)[1:]
    assert (option, rate) == ("--rate", "1")
    goq(*again)
    originals = [m.value for m in client.read_log(topic, partition=0)]
    assert [m.value for m in client.read_log(copy)] == originals
    assert lines


def test_it_is_interrupted_with_130_while_it_keeps_to_a_rate(
    goq: Run, topic: str, lines: list[str], environment: dict[str, str]
) -> None:
    replay = start_goq(
        ["replay", topic, *ALL, "--rate", "2/s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert replay.stdout is not None
    first = replay.stdout.readline()
    replay.send_signal(signal.SIGINT)
    _, errors = replay.communicate(timeout=30)
    assert first
    assert (replay.returncode, errors) == (130, b"")
    assert lines


def test_a_key_may_be_any_bytes_also_in_the_command_that_goes_on(goq: Run, topic: str) -> None:
    key = os.fsdecode(b"k'\xffa")
    goq("produce", topic, "--key", key, stdin=b"with\n")
    goq("produce", topic, stdin=b"without\n")
    assert printed(goq("replay", topic, *ALL, "--key", key)) == ["with"]
    traced = json.loads(goq("trace", topic, "--key", key, "--json").stdout)["traces"]
    assert len(traced) == 1
    told = goq("replay", topic, *ALL, "--key", key, "--into", f"{topic}-copy").stderr.decode()
    [command] = re.findall(r"^  goq (.*)$", told, re.MULTILINE)
    words = ["bash", "-c", f"printf '%s\\0' {command}"]
    typed = subprocess.run(words, capture_output=True, check=True).stdout.split(b"\0")[:-1]
    again = goq(*map(os.fsdecode, typed)).stderr.decode()
    assert again.endswith(f"0 messages stored in {topic}-copy, 1 were there already\n")


@pytest.mark.parametrize(
    "command",
    [
        ("dlq", "list", "TOPIC", "--key", "\udcff"),
        ("grep", "TOPIC", "\udcff"),
        ("message", "cancel", "TOPIC:0:0", "--reason", "\udcff"),
    ],
    ids=" ".join,
)
def test_text_that_is_not_utf_8_is_refused_where_only_text_can_be(
    goq: Run, topic: str, command: tuple[str, ...]
) -> None:
    goq("produce", topic, "--partition", "0", stdin=b"a\n")
    refused = goq(*(word.replace("TOPIC", topic) for word in command), code=7).stderr
    assert b"which UTF-8 cannot hold" in refused
