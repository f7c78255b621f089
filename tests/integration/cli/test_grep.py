"""``goq grep`` shows the messages that contain a text."""

from __future__ import annotations

import json

from tests.support.cli.command import Run


def test_grep_shows_what_contains_the_text_the_newest_first(goq: Run, topic: str) -> None:
    lines = b"".join(b"order %d of tea\n" % n for n in range(250)) + b"ORDER of Coffee\n[/x]\n"
    goq("produce", topic, "--partition", "0", stdin=lines)
    header, *rows = goq("grep", topic, "der 7").stdout.decode().splitlines()
    assert header.split("\t") == ["id", "timestamp", "key", "value"]
    assert [row.split("\t")[3] for row in rows] == [
        *(f"order {n} of tea" for n in range(79, 69, -1)),
        "order 7 of tea",
    ]
    found = json.loads(goq("--json", "grep", topic, "coffee", "-i").stdout)["messages"]
    assert [message["value"] for message in found] == ["ORDER of Coffee"]
    assert b"[/x]" in goq("grep", topic, "[/x]").stdout


def test_grep_shows_as_many_as_asked_for_and_says_when_there_are_none(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"tea\n" * 230)
    done = goq("grep", topic, "tea", "--max", "120")
    assert len(done.stdout.splitlines()) == 121
    assert len(goq("grep", topic, "tea", "--max", "1000").stdout.splitlines()) == 231
    assert b"searched 230" in goq("grep", topic, "teapot", code=3).stderr
    assert goq("grep", topic, "tea", "--in", "key", code=3).stdout == b""
    assert b"--in takes" in goq("grep", topic, "tea", "--in", "body", code=2).stderr
    goq("grep", "no-such-topic", "tea", code=3)


def test_a_range_of_times_that_ends_before_it_begins_is_refused(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"a\n")
    for command in (("grep", topic, "a"), ("trace", topic, "--key", "a")):
        times = ("--from-time", "now", "--to-time", "-1h")
        refused = goq(*command, *times, code=7).stderr
        assert b"the end lies before the beginning (to_time)" in refused
