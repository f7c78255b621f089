from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from goq import limits
from goq.client import Client
from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq
from tests.support.effort import first_of
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode

AWKWARD = b"plain\r\n\n\ttabbed 'quoted' \"twice\"\n\xff\xfe not text\n" + b"x" * 5000 + b"\nlast\n"


@pytest.mark.parametrize("tail", [b"", b"no newline at the end"])
def test_lines_come_back_byte_for_byte(goq: Run, topic: str, tail: bytes) -> None:
    goq("produce", topic, stdin=AWKWARD + tail)
    assert goq("consume", topic, "--from-beginning", "--raw").stdout == AWKWARD + tail


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (("--raw",), b"alice\nbob\ncarol\ndave"),
        (("--raw", "-0"), b"alice\0bob\0carol\0dave\0"),
    ],
)
@pytest.mark.parametrize("mode", [("--from-beginning",), ("--group", "g", "--until-empty")])
def test_messages_of_inputs_without_a_final_newline_stay_apart(
    goq: Run, topic: str, mode: tuple[str, ...], options: tuple[str, ...], printed: bytes
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    for value in (b"alice", b"bob", b"carol\n", b"dave"):
        goq("produce", topic, stdin=value)
    assert goq("consume", topic, *mode, *options).stdout == printed


def test_the_mark_of_a_last_line_goes_to_no_other_message(goq: Run, topic: str) -> None:
    goq("produce", topic, "--key-sep", ":", "--on-error", "skip", stdin=b"k:v\nnokey", code=1)
    assert goq("consume", topic, "--from-beginning", "--raw").stdout == b"v\n"


def test_several_files_are_published_in_their_order(goq: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3\n")
    goq("produce", topic, "a", "-", "b", stdin=b"in between\n")
    read = goq("consume", topic, "--from-beginning").stdout
    assert read == b"1\n2\nin between\n3\n"


def test_nothing_on_stdin_publishes_nothing(goq: Run, topic: str) -> None:
    goq("topic", "create", topic)
    assert goq("produce", topic, "--json").stdout == b'{"published":0}\n'


def test_a_key_of_all_messages_and_a_header_are_set(goq: Run, topic: str) -> None:
    goq("produce", topic, "--key", "k", "--header", "a=b=c", stdin=b"v\n")
    read = goq("consume", topic, "--from-beginning", "--format", r"%k|%v|%h\n").stdout
    assert read == b"k|v|a=b=c\n"


def test_what_stands_before_the_separator_is_the_key(goq: Run, topic: str) -> None:
    goq("produce", topic, "--key-sep", r"\t", stdin=b"k1\tv\t1\nk2\t\n")
    read = goq("consume", topic, "--from-beginning", "--format", r"%k=%v\n").stdout
    assert read == b"k1=v\t1\nk2=\n"


def test_a_line_without_the_separator_is_named_and_those_before_it_are_stored(
    goq: Run, topic: str
) -> None:
    done = goq("produce", topic, "--key-sep", ":", stdin=b"a:1\nb:2\nnone\nc:3\n", code=7)
    assert b"stdin, line 3" in done.stderr


def test_json_lines_carry_key_headers_and_base64(goq: Run, topic: str) -> None:
    lines = [
        {"value": "text", "key": "k", "headers": {"h": "1"}},
        {"value_base64": "/wA=", "key_base64": "/w=="},
        {"value": None, "key": "gone"},
    ]
    goq("produce", topic, "--jsonl", stdin="\n".join(map(json.dumps, lines)).encode())
    out = goq("consume", topic, "--from-beginning", "--json").stdout
    read = [json.loads(line) for line in out.splitlines()]
    shown = {(m.get("value"), m.get("value_base64"), m.get("key")) for m in read}
    assert shown == {("text", None, "k"), (None, "/wA=", None), (None, None, "gone")}
    assert [m["headers"] for m in read if m.get("key") == "k"] == [[{"name": "h", "value": "1"}]]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"valu":"x"}',
        b'{"value":1}',
        b'{"value_base64":"!"}',
        b"{}",
        b'"x"',
        b"\xff",
        b'{"value":"a","key":"k","key_base64":"bA=="}',
        b'{"value":"a","headers":[{"name":"h","value":"v","value_base64":"dw=="}]}',
    ],
)
def test_a_bad_json_line_is_named(goq: Run, topic: str, line: bytes) -> None:
    done = goq("produce", topic, "--jsonl", stdin=b'{"value":"ok"}\n' + line + b"\n", code=7)
    assert b"stdin, line 2" in done.stderr


def test_a_whole_file_is_one_message(goq: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(AWKWARD)
    goq("produce", topic, "--whole", "file")
    assert goq("consume", topic, "--from-beginning", "--raw").stdout == AWKWARD + b"\n"


def test_delimiters_of_any_length_cut_messages(goq: Run, topic: str) -> None:
    goq("produce", topic, "--delimiter", r"--\x41", stdin=b"a--Ab--A-c")
    assert goq("consume", topic, "--from-beginning").stdout == b"a\nb\n-c\n"


def test_null_delimited_input_and_output_match(goq: Run, topic: str) -> None:
    goq("produce", topic, "-0", stdin=b"a\nb\0c\0")
    assert goq("consume", topic, "--from-beginning", "--raw", "-0").stdout == b"a\nb\0c\0"


def test_ids_are_printed_in_the_order_of_the_input(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "3")
    values = [b"%d" % n for n in range(500)]
    done = goq("produce", topic, "--print-ids", "--batch", "7", stdin=b"\n".join(values) + b"\n")
    ids = done.stdout.decode().split()
    read = goq("consume", topic, "--from-beginning", "--format", r"%i %v\n").stdout.splitlines()
    by_id = dict(line.split() for line in read)
    assert [by_id[i.encode()] for i in ids] == values


def test_a_partition_can_be_chosen(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "3")
    done = goq("produce", topic, "--partition", "2", "--print-ids", stdin=b"a\nb\n")
    assert done.stdout.decode().split() == [f"{topic}:2:0", f"{topic}:2:1"]
    assert b"not 3" in goq("produce", topic, "--partition", "3", stdin=b"a\n", code=3).stderr


def test_compressed_batches_come_back_as_they_were(goq: Run, topic: str) -> None:
    lines = b"".join(b"the same words again %d\n" % n for n in range(3000))
    goq("produce", topic, "--compress", "zstd", stdin=lines)
    assert goq("consume", topic, "--from-beginning", "--raw").stdout == lines


def test_a_value_at_the_limit_is_stored_and_one_byte_more_is_refused(goq: Run, topic: str) -> None:
    most = b"x" * limits.VALUE_BYTES_MAX
    goq("produce", topic, stdin=b"before\n" + most + b"\n")
    assert goq("consume", topic, "--from-beginning").stdout == b"before\n" + most + b"\n"
    done = goq("produce", topic, stdin=b"ok\n" + most + b"x\n", code=7)
    assert b"limit of a value" in done.stderr
    done = goq("produce", topic, "--whole", stdin=most + b"x", code=7)
    assert b"limit of a value" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--jsonl", "--whole"), 2, "exclude"),
        (("--compress", "gzip"), 2, "zstd"),
        (("--acks", "all"), 2, "quorum or leader"),
        (("--key", "a", "--key-sep", ":"), 2, "not both"),
        (("--delimiter", ""), 2, "empty"),
        (("--header", "novalue"), 2, "key=value"),
        (("--header", "a=b", "--header", "a=c"), 2, "given twice"),
        (("--partition", "-1"), 2, "--partition"),
        (("--partition", "5000000000"), 7, "a partition is 0 to"),
        (("--batch", "0"), 7, "batch"),
        (("--linger", "soon"), 7, "duration"),
        (("--prority", "high"), 2, "No such option"),
        (("nosuchfile",), 3, "nosuchfile"),
        ((".",), 2, "folder"),
    ],
)
def test_bad_options_are_explained(
    goq: Run, topic: str, arguments: tuple[str, ...], code: int, told: str
) -> None:
    assert told in goq("produce", topic, *arguments, stdin=b"x\n", code=code).stderr.decode()


def test_a_bad_topic_name_is_explained(goq: Run) -> None:
    assert b"A-Z a-z" in goq("produce", "no/such", stdin=b"x\n", code=7).stderr


def test_a_slow_pipe_is_not_held_back(
    environment: dict[str, str], topic: str, tmp_path: Path
) -> None:
    """A line is there for consumers although the pipe that it came by stays open."""
    producer = start_goq(["produce", topic], stdin=subprocess.PIPE, env=environment)
    assert producer.stdin is not None
    try:
        with Client(environment["GOQ_SERVER"]) as client:
            client.create_topic(topic, 1)
            os.write(producer.stdin.fileno(), b"first\nand the beg")
            [message] = client.read(topic, partition=0, offset=0, wait="20s").messages
            assert message.value == b"first"
            os.write(producer.stdin.fileno(), b"inning\n")
            [message] = client.read(topic, partition=0, offset=1, wait="20s").messages
            assert message.value == b"and the beginning"
    finally:
        producer.stdin.close()
        assert producer.wait(60) == 0


def test_no_node_at_all_is_said_with_what_to_do(goq: Run, topic: str) -> None:
    done = goq("topic", "list", "--server", "http://127.0.0.1:1", code=5)
    assert b"127.0.0.1:1" in done.stderr
    assert b"goq serve" in done.stderr


def read_json(goq: Run, topic: str) -> list[dict[str, object]]:
    lines = goq("consume", topic, "--from-beginning", "--json").stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_options_say_how_every_message_is_delivered(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "1", "--set", "delay.max=36500d")
    options = ("--priority", "high", "--delay", "1h", "--ttl", "1h", "--tenant", "acme")
    goq("produce", topic, *options, stdin=b"a\nb")
    goq("produce", topic, "--deliver-at", "2099-01-01", "--whole", stdin=b"c\n")
    first, second, third = read_json(goq, topic)
    for found in (first, second):
        assert (found["priority"], found["tenant"]) == ("high", "acme")
        assert str(found["timestamp"]) < str(found["deliver_at"]) < str(found["expires_at"])
    assert (third["priority"], third["deliver_at"]) == ("normal", "2099-01-01T00:00:00.000000Z")
    assert "tenant" not in third
    assert "expires_at" not in third


def test_json_lines_say_how_each_is_delivered_and_options_go_before(goq: Run, topic: str) -> None:
    goq("topic", "create", topic, "--partitions", "1", "--set", "delay.max=36500d")
    lines = [
        {"value": "a", "priority": "high", "delay": "1h", "tenant": "t"},
        {"value": "b", "priority": 2, "dedup_id": "d"},
        {"value": "c", "dedup_id": "d"},
    ]
    stdin = "".join(json.dumps(line) + "\n" for line in lines).encode()
    ids = goq("produce", topic, "--jsonl", "--print-ids", stdin=stdin).stdout.split()
    assert ids == [f"{topic}:0:{n}".encode() for n in (0, 1, 1)]
    goq("produce", topic, "--jsonl", "--deliver-at", "2099-01-01", "--tenant", "u", stdin=stdin)
    found = read_json(goq, topic)
    assert [m["priority"] for m in found] == ["high", "low", "high"]
    assert [m.get("tenant") for m in found] == ["t", None, "u"]
    assert found[2]["deliver_at"] == "2099-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--priority", "urgent"), 7, "no lane"),
        (("--delay", "400d"), 7, "delay.max"),
        (("--deliver-at", "someday"), 7, "time"),
        (("--ttl", "0"), 7, "live"),
        (("--tenant", ""), 7, "tenant"),
        (("--delay", "1s", "--deliver-at", "now"), 2, "not both"),
    ],
)
def test_what_cannot_be_delivered_so_is_explained(
    goq: Run, topic: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = goq("produce", topic, *arguments, stdin=b"x\n", code=code)
    assert said in done.stderr.decode()


@pytest.mark.parametrize("acks", ["quorum", "leader"])
def test_a_node_of_its_own_takes_what_is_said_of_acks(goq: Run, topic: str, acks: str) -> None:
    goq("produce", topic, "--acks", acks, stdin=b"v\n")
    assert goq("consume", topic, "--from-beginning").stdout == b"v\n"


def test_what_json_prints_can_be_produced_again(goq: Run, topic: str, node: RunningNode) -> None:
    goq("topic", "create", topic, "--partitions", "1", "--set", "delivery.max_attempts=1")
    with Client(node.url) as client:
        headers = [("a", b"1"), ("a", b"\xff"), ("b", "é".encode())]
        client.publish(topic, b"\xff\x00", key=b"\xfe", headers=headers, priority="high")
        client.publish(topic, "é\n", key="k", tenant="t", ttl="1h")
        client.publish(topic, None, key="tombstone")
        for message in client.receive(topic, "g"):
            message.reject("no")
        eventually(lambda: client.describe_group(topic, "g").dead == 3, "all are dead")
    seen = goq("consume", topic, "--json").stdout
    again = f"{topic}-again"
    goq("topic", "create", again, "--partitions", "1")
    goq("produce", again, "--jsonl", stdin=seen)
    copies = goq("consume", again, "--json").stdout
    assert [contents(line) for line in copies.splitlines()] == [
        contents(line) for line in seen.splitlines()
    ]
    sources = (
        ("consume", topic, "--group", "h", "--until-empty"),
        ("peek", topic),
        ("peek", topic, "--group", "g", "--state", "dead"),
        ("dlq", "list", topic),
    )
    for command in sources:
        done = goq("produce", again, "--jsonl", "--json", stdin=goq(*command, "--json").stdout)
        assert json.loads(done.stdout) == {"published": 3}, command


def contents(line: bytes) -> dict[str, object]:
    """Return the fields of a message that belong to it, not to its place in a log."""
    places = ("id", "topic", "timestamp", "expires_at")
    return {name: value for name, value in json.loads(line).items() if name not in places}


LONG = b"x" * (limits.VALUE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("delimiter", "before"),
    first_of(
        [
            (b"--", (LONG, b"first", LONG, b"last")),
            (b"\n", (b"first", LONG, b"last")),
            (b"\n", (b"first", b"last", LONG)),
        ],
        quick=1,
    ),
)
def test_what_is_too_long_is_left_out_or_kept_in_a_file(
    goq: Run, topic: str, tmp_path: Path, delimiter: bytes, before: tuple[bytes, ...]
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    data = b"".join(value + delimiter for value in before)
    options = ("--delimiter", delimiter.decode().replace("\n", r"\n"))
    done = goq("produce", topic, *options, "--on-error", "kept", stdin=data, code=1)
    assert b"messages were left out; they are in kept" in done.stderr
    assert (tmp_path / "kept").read_bytes() == (LONG + delimiter) * before.count(LONG)
    assert goq("consume", topic).stdout == b"first\nlast\n"
    goq("produce", topic, *options, "--on-error", "skip", stdin=data, code=1)
    assert goq("consume", topic).stdout == b"first\nlast\n" * 2


def test_malformed_lines_are_left_out_and_what_comes_before_an_error_is_stored_and_counted(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    goq("topic", "create", topic, "--partitions", "1")
    lines = [b'{"value": "a"}', b"{no json}", b'{"value": "b", "delay": "soon"}', b'{"value": "c"}']
    data = b"".join(line + b"\n" for line in lines)
    done = goq("produce", topic, "--jsonl", stdin=data, code=7)
    assert b"stdin, line 2" in done.stderr
    assert b"1 messages were stored" in done.stderr
    goq("produce", topic, "--jsonl", "--on-error", "bad.jsonl", stdin=data, code=1)
    assert (tmp_path / "bad.jsonl").read_bytes() == b"".join(line + b"\n" for line in lines[1:3])
    assert goq("consume", topic).stdout == b"a\na\nc\n"
    done = goq("produce", topic, "--key-sep", "=", stdin=b"k=v\nno key\nl=w\n", code=7)
    assert b"line 2" in done.stderr
    assert b"1 messages were stored" in done.stderr
    goq("produce", topic, "--on-error", "missing/file", stdin=b"a\n", code=2)
    done = goq("produce", topic, "--jsonl", "--on-error", "/dev/full", stdin=data, code=1)
    assert b"/dev/full: No space left" in done.stderr


LONG_KEY = "k" * (limits.KEY_BYTES_MAX + 1)
WRONG_LINES = (
    (f"{LONG_KEY}:2", "--key-sep", ":"),
    (json.dumps({"value": "2", "headers": {"h": "x" * (limits.HEADERS_BYTES_MAX + 1)}}), "--jsonl"),
    (json.dumps({"value": "2", "headers": {"": "x"}}), "--jsonl"),
    (json.dumps({"value": "2", "headers": {f"{n}": "x" for n in range(99)}}), "--jsonl"),
    (json.dumps({"value": "2", "key": LONG_KEY}), "--jsonl"),
    (json.dumps({"value": "2", "priority": "none"}), "--jsonl"),
    (json.dumps({"messages": [{"value": "2"}, {"value": "2", "delay": "soon"}]}), "--jsonl"),
)


@pytest.mark.parametrize("wrong", WRONG_LINES, ids=range(len(WRONG_LINES)))
def test_a_line_over_any_limit_is_named_and_leaves_the_others_alone(
    goq: Run, topic: str, tmp_path: Path, wrong: tuple[str, ...]
) -> None:
    line, *options = wrong
    goq("topic", "create", topic, "--partitions", "1")
    others = [json.dumps({"value": "1"}), json.dumps({"value": "3"})]
    first, last = others if options == ["--jsonl"] else ("a:1", "c:3")
    data = "".join(f"{each}\n" for each in (first, line, last)).encode()
    done = goq("produce", topic, *options, stdin=data, code=7)
    assert b"stdin, line 2: " in done.stderr
    assert b"1 messages were stored" in done.stderr
    assert goq("consume", topic).stdout == b"1\n"
    done = goq("produce", topic, *options, "--on-error", "kept", stdin=data, code=1)
    assert b"1 messages were left out; they are in kept" in done.stderr
    assert (tmp_path / "kept").read_text() == f"{line}\n"
    assert goq("consume", topic).stdout == b"1\n1\n3\n"
