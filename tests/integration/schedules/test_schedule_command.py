"""``goq schedule``, as a user types it."""

from __future__ import annotations

import json

from tests.support.cli.command import Run


def test_a_schedule_is_added_shown_paused_resumed_and_removed(goq: Run) -> None:
    cron = ("--cron", "0 9 * * MON-FRI", "--tz", "Europe/Zurich")
    options = ("--key", "k", "--header", "a=b=c", "--ttl", "1d", "--priority", "high")
    goq("schedule", "add", "daily", "reports", "one", "two", *cron, *options)
    goq("schedule", "add", "often", "reports", "x", "--every", "5m")
    lines = goq("schedule", "list").stdout.decode().splitlines()
    assert lines[0].split("\t") == ["name", "topic", "when", "next", "last", "problem"]
    assert lines[1].startswith("daily\treports\t0 9 * * MON-FRI (Europe/Zurich)\t2")
    assert lines[2].startswith("often\treports\tevery 5m\t2")
    shown = json.loads(goq("schedule", "show", "daily", "--json").stdout)
    message = {"key": "k", "headers": {"a": "b=c"}, "priority": "high", "ttl": "1d"}
    assert shown["messages"] == [{"value": "one", **message}, {"value": "two", **message}]
    assert json.loads(goq("schedule", "pause", "often", "--json").stdout)["paused"]
    assert "next     paused" in goq("schedule", "show", "often").stdout.decode()
    assert json.loads(goq("schedule", "resume", "often", "--json").stdout)["next"]
    removed = goq("schedule", "remove", "often", "--json").stdout
    assert json.loads(removed) == {"removed": "often"}
    found = json.loads(goq("schedule", "list", "--json").stdout)["schedules"]
    assert [each["name"] for each in found] == ["daily"]


def test_a_wrong_schedule_is_refused_with_what_to_do(goq: Run) -> None:
    neither = goq("schedule", "add", "x", "reports", "v", code=2)
    assert b"either --cron or --every" in neither.stderr
    header = goq("schedule", "add", "x", "reports", "v", "--every", "1m", "--header", "a", code=2)
    assert b"not K=V" in header.stderr
    twice = ("--header", "a=1", "--header", "a=2")
    assert (
        b"given twice"
        in goq("schedule", "add", "x", "t", "v", "--every", "1m", *twice, code=2).stderr
    )
    line = goq("schedule", "add", "x", "reports", "v", "--cron", "@daily", code=7)
    assert b"five fields" in line.stderr
    missing = goq("schedule", "pause", "x", code=3)
    assert b"there is no schedule 'x'" in missing.stderr
