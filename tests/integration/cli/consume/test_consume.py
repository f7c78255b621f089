from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from goq.client import Client
from goq.units import format_time_us
from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq
from tests.support.effort import first_of
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


def publish(goq: Run, topic: str, count: int) -> list[str]:
    lines = [f"line {n}" for n in range(count)]
    goq("produce", topic, stdin="".join(f"{line}\n" for line in lines).encode())
    return lines


def group_of(environment: dict[str, str], topic: str, group: str) -> Mapping[str, int]:
    with Client(environment["GOQ_SERVER"]) as client:
        return client.describe_group(topic, group).raw


def test_a_group_prints_every_message_once_and_acknowledges_it(
    goq: Run, topic: str, environment: dict[str, str]
) -> None:
    lines = publish(goq, topic, 2500)
    first = goq("consume", topic, "--group", "g", "--max", "700").stdout.decode().splitlines()
    rest = goq("consume", topic, "--group", "g", "--until-empty").stdout.decode().splitlines()
    assert len(first) == 700
    assert sorted(first + rest) == sorted(lines)
    found = group_of(environment, topic, "g")
    assert (found["lag"], found["leased"]) == (0, 0)


def test_groups_of_several_topics_are_consumed_together(goq: Run, topic: str) -> None:
    publish(goq, topic, 3)
    publish(goq, f"{topic}-b", 3)
    done = goq(
        "consume", topic, f"{topic}-b", "--group", "g", "--until-empty", "--format", r"%t %v\n"
    )
    assert len(set(done.stdout.splitlines())) == 6


def test_without_acks_messages_come_again_when_their_lease_ends(goq: Run, topic: str) -> None:
    publish(goq, topic, 3)
    options = ("--group", "g", "--max", "3", "--format", r"%v %a\n")
    first = goq("consume", topic, *options, "--visibility", "2s", "--no-ack")
    assert b"line 0 1" in first.stdout.splitlines()
    again = dict(
        line.rsplit(b" ", 1) for line in goq("consume", topic, *options).stdout.splitlines()
    )
    assert int(again[b"line 0"]) > 1


def test_without_acks_more_is_printed_than_may_be_in_flight_at_first(goq: Run, topic: str) -> None:
    lines = publish(goq, topic, 50)
    options = ("--group", "g", "--prefetch", "7", "--no-ack", "--timeout", "5s")
    done = goq("consume", topic, *options)
    assert sorted(done.stdout.decode().splitlines()) == sorted(lines)


def test_max_takes_no_more_than_it_prints(
    goq: Run, topic: str, environment: dict[str, str]
) -> None:
    publish(goq, topic, 30)
    goq("consume", topic, "--group", "g", "--prefetch", "8", "--max", "20")
    found = group_of(environment, topic, "g")
    assert (found["leased"], found["ready"], found["lag"], found["retry"]) == (0, 10, 10, 0)
    done = goq("consume", topic, "--group", "g", "--until-empty", "--format", r"%a\n")
    assert done.stdout.split() == [b"1"] * 10


def test_a_timeout_ends_a_wait_for_messages(goq: Run, topic: str) -> None:
    publish(goq, topic, 1)
    done = goq("consume", topic, "--group", "g", "--timeout", "2s")
    assert done.stdout == b"line 0\n"


def test_the_log_is_read_without_touching_groups(goq: Run, topic: str) -> None:
    lines = publish(goq, topic, 50)
    for _ in range(2):
        assert goq("consume", topic).stdout.decode().splitlines() == lines
    done = goq("group", "list", "--topic", topic, "--json")
    assert json.loads(done.stdout) == {"groups": []}


def test_the_log_is_read_from_an_offset_of_a_partition(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "2")
    goq("produce", topic, "--partition", "1", stdin=b"a\nb\nc\n")
    done = goq("consume", topic, "--partition", "1", "--from-offset", "1", "--format", r"%o%v ")
    assert done.stdout == b"1b 2c "


def test_the_log_is_read_between_times(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    for value in (b"a\n", b"b\n", b"c\n"):
        goq("produce", topic, stdin=value)
    times = goq("consume", topic, "--format", r"%T\n").stdout.decode().split()
    done = goq("consume", topic, "--from-time", times[1], "--to-time", times[2])
    assert done.stdout == b"b\n"


def test_a_range_of_times_is_exact_where_the_clock_was_set_back(
    goq: Run, topic: str, node: RunningNode
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    start_us = 1_700_000_000_000_000
    clock: Any = node.node.broker.clock
    for value, step_us in ((b"a", 1), (b"b", 5), (b"c", 2), (b"d", 4), (b"e", 3)):
        clock.wall_us = lambda now_us=start_us + step_us: now_us
        goq("produce", topic, stdin=value)
    del clock.wall_us
    times = [format_time_us(start_us + step_us) for step_us in range(7)]
    for first, last, expected in ((2, 5, "cde"), (4, 6, "bd"), (3, 3, ""), (6, 6, ""), (0, 1, "")):
        given = ["--from-time", times[first], "--to-time", times[last]]
        for more in ([], ["--background"]):
            done = goq("consume", topic, *given, *more, "--format", "%v")
            assert done.stdout.decode() == expected
    refused = goq("consume", topic, "--from-time", times[2], "--to-time", times[1], code=7)
    assert b"to_time is before from_time" in refused.stderr
    goq("consume", topic, "--group", "g", "--background", code=2)


def test_following_prints_what_comes_and_ends_at_max(
    environment: dict[str, str], topic: str, goq: Run
) -> None:
    publish(goq, topic, 2)
    arguments = ["consume", topic, "--from-beginning", "--follow", "--max", "3"]
    follower = start_goq([*arguments], stdout=subprocess.PIPE, env=environment, bufsize=0)
    assert follower.stdout is not None
    assert [follower.stdout.readline(), follower.stdout.readline()] == [b"line 0\n", b"line 1\n"]
    goq("produce", topic, stdin=b"new\n")
    assert follower.communicate(timeout=60)[0] == b"new\n"
    assert follower.returncode == 0


def test_a_command_a_message_acknowledges_by_its_exit_code(
    goq: Run, topic: str, environment: dict[str, str], tmp_path: Path
) -> None:
    publish(goq, topic, 12)
    command = (
        'read -r line; echo "$line $GOQ_TOPIC $GOQ_ATTEMPT" >> out;'
        ' if [ "$line" = "line 5" ] && [ "$GOQ_ATTEMPT" = 1 ]; then echo broken >&2; exit 3; fi'
    )
    options = ("--group", "g", "--exec", command, "--jobs", "3", "--retry-delay", "10ms")
    done = goq("consume", topic, *options, "--max", "13", code=1)
    assert b"broken" in done.stderr
    written = sorted((tmp_path / "out").read_text().splitlines())
    expected = [f"line {n} {topic} 1" for n in range(12)] + [f"line 5 {topic} 2"]
    assert written == sorted(expected)
    found = group_of(environment, topic, "g")
    assert (found["lag"], found["leased"], found["retry"]) == (0, 0, 0)


def test_what_a_command_says_is_shown_while_it_runs(
    environment: dict[str, str], topic: str, goq: Run, tmp_path: Path
) -> None:
    publish(goq, topic, 1)
    go_on = tmp_path / "go-on"
    os.mkfifo(go_on)
    options = ["--group", "g", "--exec", f"echo begun >&2; cat {go_on}", "--until-empty"]
    with start_goq(["consume", topic, *options], env=environment, stderr=subprocess.PIPE) as goq_:
        assert goq_.stderr is not None
        assert goq_.stderr.readline() == b"begun\n"
        go_on.write_bytes(b"")
        assert goq_.wait(60) == 0


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_command_that_cannot_run_costs_no_message_an_attempt(
    environment: dict[str, str], topic: str, goq: Run, jobs: str
) -> None:
    goq("topic", "create", topic, "--set", "delivery.max_attempts=1")
    lines = publish(goq, topic, 5)
    options = ("--group", "g", "--until-empty", "--jobs", jobs)
    done = goq("consume", topic, *options, "--exec", "goq-has-no-such-program", code=2)
    assert b"--exec: the shell cannot run this (exit 127): goq-has-no-such-program" in done.stderr
    found = group_of(environment, topic, "g")
    assert (found["lag"], found["leased"], found["dead"]) == (5, 0, 0)
    again = goq("consume", topic, "--group", "g", "--until-empty", "--format", r"%a %v\n")
    assert sorted(again.stdout.decode().splitlines()) == [f"1 {line}" for line in lines]


def test_a_command_that_has_run_fails_its_message_by_any_exit_code(
    environment: dict[str, str], topic: str, goq: Run
) -> None:
    goq("topic", "create", topic, "--partitions", "1", "--set", "delivery.max_attempts=1")
    publish(goq, topic, 3)
    command = 'read line; test "$line" != "line 1" || exit 127'
    goq("consume", topic, "--group", "g", "--until-empty", "--exec", command, code=1)
    found = group_of(environment, topic, "g")
    assert (found["lag"], found["dead"]) == (0, 1)


def test_a_command_that_leaves_a_process_behind_acknowledges_its_message(
    environment: dict[str, str], topic: str, goq: Run, tmp_path: Path
) -> None:
    publish(goq, topic, 3)
    command = f"sleep 600 > {os.devnull} & echo $! >> pids"
    try:
        goq("consume", topic, "--group", "g", "--exec", command, "--until-empty")
    finally:
        for pid in (tmp_path / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    found = group_of(environment, topic, "g")
    assert (found["lag"], found["leased"]) == (0, 0)


def test_a_command_has_the_trace_context_of_its_message_and_no_other(goq: Run, topic: str) -> None:
    def found(*headers: str) -> str:
        goq("produce", topic, *(f"--header={h}" for h in headers), stdin=b"v\n")
        show = "echo ${TRACEPARENT-none} ${TRACESTATE-none}"
        ours = {"TRACEPARENT": "of the consumer", "TRACESTATE": "too"}
        done = goq("consume", topic, "--group", "g", "--until-empty", "--exec", show, **ours)
        return done.stdout.decode().strip()

    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert found(f"traceparent={parent}", "tracestate=a=1") == f"{parent} a=1"
    assert found("TraceParent=nonsense") == "nonsense none"
    assert found() == "none none"


def test_a_command_that_reads_nothing_and_a_message_larger_than_a_pipe(
    goq: Run, topic: str
) -> None:
    goq("produce", topic, stdin=b"x" * 1_000_000 + b"\n")
    done = goq("consume", topic, "--group", "g", "--until-empty", "--exec", "echo done")
    assert done.stdout == b"done\n"


@pytest.mark.parametrize(("name", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_consumer_leaves_nothing_half_acknowledged(
    environment: dict[str, str], topic: str, goq: Run, name: signal.Signals, code: int
) -> None:
    lines = publish(goq, topic, 3000)
    arguments = ["consume", topic, "--group", "g", "--prefetch", "100", "--visibility", "10m"]
    consumer = start_goq(
        [*arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        bufsize=0,  # communicate() does not see what readline() read ahead
    )
    assert consumer.stdout is not None
    early = [consumer.stdout.readline().decode().strip() for _ in range(150)]
    consumer.send_signal(name)
    out, err = consumer.communicate(timeout=60)
    assert (consumer.returncode, err) == (code, b"")
    printed = early + out.decode().splitlines()
    found = group_of(environment, topic, "g")
    assert found["leased"] == 0
    assert found["lag"] == len(lines) - len(printed)
    rest = goq("consume", topic, "--group", "g", "--until-empty").stdout.decode().splitlines()
    assert sorted(printed + rest) == sorted(lines)


@pytest.mark.parametrize(
    "end", first_of(["SIGINT", "--max=1", "--until-empty", "--timeout=1s"], quick=2)
)
def test_the_lease_of_a_command_is_extended_until_it_ends_however_the_loop_ends(
    environment: dict[str, str], topic: str, goq: Run, tmp_path: Path, end: str
) -> None:
    publish(goq, topic, 1)
    started = tmp_path / "started"
    options = ["--group", "g", "--visibility", "2s", "--exec", f"touch {started}; sleep 3.5"]
    options += [end] if end.startswith("--") else []
    with start_goq(["consume", topic, *options], env=environment) as consumer:
        eventually(started.exists, "the command runs")
        if end == "SIGINT":
            consumer.send_signal(signal.SIGINT)
    assert consumer.returncode == (130 if end == "SIGINT" else 0)
    found = group_of(environment, topic, "g")
    assert (found["lag"], found["leased"], found["retry"]) == (0, 0, 0)


@pytest.mark.parametrize("names", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_no_command_starts_after_an_interrupt_and_its_message_is_given_back(
    environment: dict[str, str], topic: str, goq: Run, tmp_path: Path, names: list[signal.Signals]
) -> None:
    publish(goq, topic, 3)
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    command = f"echo $GOQ_OFFSET >> {begun}; until [ -e {go_on} ]; do sleep 0.02; done"
    options = ["--group", "g", "--visibility", "10m", "--exec", command]
    with start_goq(["consume", topic, *options], env=environment) as consumer:
        eventually(begun.exists, "the command runs")
        for name in names:
            consumer.send_signal(name)
        go_on.touch()
    assert consumer.returncode in (130, 143)
    assert len(begun.read_text().splitlines()) == 1
    found = group_of(environment, topic, "g")
    left = [(2, 0)]
    if len(names) > 1:  # the second one ends the wait for the command, if that has begun by then
        left.append((3, 1))
    assert (found["lag"], found["leased"]) in left


def test_a_lease_that_was_lost_while_its_command_ran_is_told_by_the_exit_code(
    environment: dict[str, str], topic: str, goq: Run
) -> None:
    publish(goq, topic, 1)
    reset = f"{sys.executable} -P -m goq_cli group reset g --topic {topic} --to earliest >&2"
    done = goq("consume", topic, "--group", "g", "--until-empty", "--exec", reset, code=1)
    assert b"lease" in done.stderr
    assert group_of(environment, topic, "g")["lag"] == 1


def into(reader: str, topic: str, *options: str) -> list[str]:
    """Return a shell that pipes a consumer into ``reader``, and prints the consumer's exit code."""
    consume = f"{sys.executable} -P -m goq_cli consume {topic} --group g {' '.join(options)}"
    return ["bash", "-c", f"{consume} | {reader}; echo ${{PIPESTATUS[0]}}"]


def test_a_reader_that_ends_early_leaves_every_message_unacknowledged(
    environment: dict[str, str], topic: str, goq: Run
) -> None:
    lines = publish(goq, topic, 50_000)
    done = subprocess.run(
        into("head -n 1", topic, "--visibility", "10m"),
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split(b"\n")[1] == b"0"
    assert done.stderr == b""
    found = group_of(environment, topic, "g")
    assert (found["leased"], found["lag"]) == (0, len(lines))


def test_messages_that_no_reader_can_have_taken_are_given_back_without_an_attempt(
    environment: dict[str, str], topic: str, goq: Run
) -> None:
    texts = [b"%03d" % number + b"." * 2000 for number in range(100)]  # more than a pipe holds
    goq("produce", topic, stdin=b"".join(text + b"\n" for text in texts))
    arguments = ["consume", topic, "--group", "g", "--visibility", "10m"]
    with start_goq(arguments, env=environment, stdout=subprocess.PIPE) as consumer:
        assert consumer.stdout is not None
        fd = consumer.stdout.fileno()
        eventually(lambda: unread_bytes(fd) > 20 * 2004, "the pipe holds messages")
        text = read_exactly(fd, 2004)
        begun = read_exactly(fd, 3)
        consumer.stdout.close()
        assert consumer.wait(60) == 0
    with Client(environment["GOQ_SERVER"]) as client:
        attempts: dict[bytes, int] = {}
        while len(attempts) < len(texts):
            for message in client.receive(topic, "g", max_messages=100, wait="20s"):
                attempts[(message.value or b"")[:3]] = message.attempt
    assert {place for place, attempt in attempts.items() if attempt == 2} == {text[:3], begun}
    assert {*attempts.values()} == {1, 2}


def unread_bytes(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def read_exactly(fd: int, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        data += os.read(fd, size_bytes - len(data))
    return data


def test_a_consumer_without_messages_ends_when_its_reader_has_ended(
    environment: dict[str, str], topic: str, goq: Run
) -> None:
    publish(goq, topic, 1)
    done = subprocess.run(
        into("head -n 1", topic), env=environment, capture_output=True, timeout=30, check=False
    )
    assert done.stdout == b"line 0\n0\n"
    assert group_of(environment, topic, "g")["leased"] == 0


def test_what_is_in_the_pipe_is_leased_until_its_reader_takes_it(
    environment: dict[str, str], topic: str, goq: Run
) -> None:
    lines = publish(goq, topic, 20)
    goq("group", "set", "g", "--topic", topic, "visibility_timeout=10m")
    arguments = ["consume", topic, "--group", "g", "--until-empty"]
    with start_goq([*arguments], env=environment, stdout=subprocess.PIPE) as consumer:
        assert consumer.stdout is not None
        eventually(lambda: group_of(environment, topic, "g")["leased"] == 20, "all are leased")
        assert group_of(environment, topic, "g")["lag"] == 20
        assert consumer.stdout.read().decode().splitlines() == lines
    assert consumer.returncode == 0
    assert group_of(environment, topic, "g")["lag"] == 0


def test_the_newest_messages_are_those_of_all_partitions(
    goq: Run, topic: str, environment: dict[str, str]
) -> None:
    for number in range(6):
        goq("produce", topic, "--key", f"k{number}", stdin=b"%d\n" % number)
    assert goq("consume", topic, "--last", "4").stdout.split() == [b"2", b"3", b"4", b"5"]
    assert len(goq("consume", topic, "--last", "99").stdout.split()) == 6
    words = ["consume", topic, "--last", "1", "-f", "--max", "2"]
    with start_goq([*words], env=environment, stdout=subprocess.PIPE, bufsize=0) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"5\n"
        goq("produce", topic, stdin=b"new\n")
        assert follower.communicate(timeout=30)[0] == b"new\n"
    found = json.loads(goq("peek", topic, "--newest", "--max", "2", "--json").stdout)["messages"]
    assert [message["value"] for message in found] == ["new", "5"]
    goq("consume", topic, "--last", "1", "--from-beginning", code=2)


def test_a_negative_offset_counts_from_the_end_of_each_partition(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "2")
    for partition in "01":
        goq("produce", topic, "--partition", partition, stdin=b"a\nb\nc\n")
    done = goq("consume", topic, "--from-offset", "-2", "--format", r"%p%v\n")
    assert sorted(done.stdout.split()) == [b"0b", b"0c", b"1b", b"1c"]
    assert len(goq("consume", topic, "--from-offset=-9").stdout.split()) == 6


def test_json_may_be_a_part_of_a_format(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"v\n")
    printed = goq("consume", topic, "--format", r"%t %j\n").stdout.decode()
    assert json.loads(printed.removeprefix(f"{topic} "))["value"] == "v"


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        (r"%t %p %o %i %k=%v %h%%\n", "{topic} 0 0 {topic}:0:0 k=v a=1,b-c=2%\n"),
        (r"%v\t\0\\", "v\t\0\\"),
        (r"%h{b-c}%h{none} %%h{a} %%%h{a} %x %S\n", "2 %h{{a}} %1 76 1\n"),
    ],
)
def test_formats_print_every_field(goq: Run, topic: str, form: str, printed: str) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    headers = ("--header", "a=1", "--header", "b-c=2")
    goq("produce", topic, "--key", "k", *headers, stdin=b"v\n")
    done = goq("consume", topic, "--format", form)
    assert done.stdout.decode() == printed.format(topic=topic)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--format", "%z"), "%z"),
        (("--format", "x%"), "%"),
        (("--until-empty",), "--group"),
        (("--exec", "true"), "--group"),
        (("--group", "g", "--exec", ""), "empty"),
        (("--group", "g", "--coproc", " "), "empty"),
        (("--group", "g", "--follow"), "without --group"),
        (("--group", "g", "--from-beginning"), "without --group"),
        (("--max", "0"), "--max"),
        (("--prefetch", "5"), "--group"),
        (("--from-beginning", "--from-offset", "1"), "not both"),
        (("--group", "g", "--jobs", "2"), "--exec or --coproc"),
        (("--retry-delay", "2s"), "--exec or --coproc"),
        (("--group", "g", "--exec", "true", "--framing", "null"), "--coproc"),
        (("--group", "g", "--exec", "true", "--raw"), "without --exec"),
        (("--group", "g", "--exec", "true", "--format", "%v"), "without --exec"),
        (("--raw", "--format", "%v"), "without --exec and --raw"),
        (("-0",), "--raw or --coproc"),
    ],
)
def test_options_that_do_not_go_together_are_explained(
    goq: Run, topic: str, arguments: tuple[str, ...], told: str
) -> None:
    publish(goq, topic, 1)
    assert told in goq("consume", topic, *arguments, code=2).stderr.decode()


def test_json_is_an_object_a_line_with_the_attempt(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"a\n\xff\n")
    lines = goq("consume", topic, "--group", "g", "--until-empty", "--json").stdout.splitlines()
    first, second = map(json.loads, lines)
    assert (first["value"], first["attempt"]) == ("a", 1)
    assert second["value_base64"] == "/w=="


@pytest.mark.parametrize("options", [("--group", "g", "--max", "1"), ("-f", "--max", "1")])
def test_a_consumer_may_start_before_its_topic_is_created(
    goq: Run, topic: str, environment: dict[str, str], options: tuple[str, ...]
) -> None:
    arguments = ["consume", topic, *options]
    with start_goq(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as consumer:
        assert consumer.stderr is not None
        assert b"there is no topic" in consumer.stderr.readline()
        goq("topic", "create", topic)
        assert consumer.stdout is not None
        poll = select.poll()
        poll.register(consumer.stdout, select.POLLIN)
        eventually(lambda: publish(goq, topic, 1) and poll.poll(100), "a message is printed")
        assert consumer.stdout.read() == b"line 0\n"
    assert consumer.returncode == 0


def test_a_consumer_that_is_not_to_wait_tells_that_its_topic_is_not_there(
    goq: Run, topic: str
) -> None:
    for options in (("--group", "g"), ("-f",)):
        done = goq("consume", topic, *options, "--no-wait-topic", code=3)
        assert b"there is no topic" in done.stderr
    goq("consume", topic, "--group", "g", "--until-empty", code=3)
    goq("consume", topic, code=3)


def test_a_delay_that_is_none_is_refused_before_a_command_has_run(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    publish(goq, topic, 1)
    options = ("--group", "g", "--max", "1", "--retry-delay", "soon", "--exec", "touch ran; false")
    assert b"--retry-delay" in goq("consume", topic, *options, code=7).stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["--retry-for", "GOQ_RETRY_FOR"])
def test_a_wait_for_a_node_that_is_none_is_refused_by_its_name(
    goq: Run, topic: str, name: str
) -> None:
    options = (name, "soon") if name.startswith("-") else ()
    refused = goq("consume", topic, *options, code=7, **({} if options else {name: "soon"}))
    assert f"({name})".encode() in refused.stderr


def test_an_empty_variable_counts_as_none(goq: Run) -> None:
    goq("topic", "list", GOQ_RETRY_FOR="")
