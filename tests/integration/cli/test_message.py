"""``goq message``, ``goq scheduled``, ``goq peek`` and ``goq group set``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli.command import Run


def listed(goq: Run, topic: str, *options: str) -> list[dict[str, Any]]:
    found = json.loads(goq("scheduled", "list", topic, *options, "--json").stdout)
    messages: list[dict[str, Any]] = found["messages"]
    return messages


@pytest.fixture
def later(goq: Run, topic: str) -> list[str]:
    """The ids of three messages that are due in one, two and three hours."""
    for hours in (3, 1, 2):
        goq("produce", topic, "--delay", f"{hours}h", "--partition", "0", stdin=b"%d\n" % hours)
    return [message["id"] for message in listed(goq, topic)]


def test_what_is_scheduled_is_listed_the_next_first(goq: Run, topic: str, later: list[str]) -> None:
    assert [m["value"] for m in listed(goq, topic)] == ["1", "2", "3"]
    assert [m["value"] for m in listed(goq, topic, "--max", "2")] == ["1", "2"]
    assert [m["value"] for m in listed(goq, topic, "--until", "+90m")] == ["1"]
    lines = goq("scheduled", "list", topic).stdout.decode().splitlines()
    assert lines[0].split("\t")[:2] == ["id", "deliver_at"]
    assert [line.split("\t")[0] for line in lines[1:]] == later


def test_nothing_scheduled_is_an_empty_list(goq: Run, topic: str) -> None:
    goq("topic", "create", topic)
    assert listed(goq, topic) == []
    goq("scheduled", "list", "missing", code=3)


def test_scheduled_messages_are_cancelled_and_rescheduled(
    goq: Run, topic: str, later: list[str]
) -> None:
    first, second, third = later
    goq("message", "cancel", first, "--reason", "no longer wanted")
    goq("message", "reschedule", third, "--delay", "30m")
    assert [m["id"] for m in listed(goq, topic)] == [third, second]
    goq("message", "reschedule", second, third, "--delay", "0")
    found = goq("consume", topic, "--group", "g", "--max", "2", "--timeout", "60s").stdout
    assert sorted(found.split()) == [b"2", b"3"]
    goq("message", "reschedule", second, "--deliver-at", "+1h", code=6)
    goq("message", "reschedule", second, code=2)
    goq("message", "reschedule", second, "--deliver-at", "+1h", "--delay", "1h", code=2)
    goq("message", "reschedule", second, "--delay", "soon", code=7)


def test_a_message_is_shown_moved_and_cancelled(goq: Run, topic: str) -> None:
    for value in (b"a\n", b"b\n"):
        goq("produce", topic, "--partition", "0", stdin=value)
    words = ("message", "set-priority", f"{topic}:0:1", "--to", "high", "--json")
    moved = json.loads(goq(*words).stdout)
    assert [m["priority"] for m in moved["messages"]] == ["high"]
    goq("consume", topic, "--group", "g", "--max", "1", "--prefetch", "1")
    shown = json.loads(goq("message", "show", f"{topic}:0:1", "--json").stdout)
    assert shown["groups"] == [{"group": "g", "state": "done"}]
    assert b"g\tdone" in goq("message", "show", f"{topic}:0:1").stdout
    goq("message", "cancel", f"{topic}:0:0")
    assert b"state\tcancelled" in goq("message", "show", f"{topic}:0:0").stdout
    goq("message", "cancel", f"{topic}:0:1", code=6)
    goq("message", "show", f"{topic}:0:9", code=3)
    goq("message", "show", "nonsense", code=7)
    goq("message", "set-priority", f"{topic}:0:1", "--to", "urgent", code=7)


def test_of_several_messages_those_that_can_be_are_changed(goq: Run, topic: str) -> None:
    goq("produce", topic, "--partition", "0", stdin=b"a\n")
    done = goq("message", "cancel", f"{topic}:0:9", f"{topic}:0:0", "--json", code=1)
    assert json.loads(done.stderr)["code"] == "message_not_found"
    assert [m["id"] for m in json.loads(done.stdout)["messages"]] == [f"{topic}:0:0"]


def test_peek_goes_on_over_pages(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"".join(b"%d\n" % n for n in range(1500)))
    goq("consume", topic, "--group", "g", "--max", "1", "--no-ack", "--prefetch", "1")
    found = json.loads(goq("peek", topic, "--group", "g", "--max", "1200", "--json").stdout)
    assert len({m["id"] for m in found["messages"]}) == 1200
    goq("produce", topic, "--delay", "1h", stdin=b"later\n")
    peeked = goq("peek", topic, "--group", "g", "--state", "scheduled").stdout.decode()
    assert "deliver_at" in peeked.splitlines()[0]
    assert "later" in peeked


def test_a_group_gets_settings_of_its_own(goq: Run, topic: str) -> None:
    goq("topic", "create", topic)
    done = goq("group", "set", "g", "--topic", topic, "max_attempts=7", "--json")
    assert json.loads(done.stdout)["settings"]["max_attempts"] == "7"
    assert b"max_attempts\t7" in goq("group", "show", "g", "--topic", topic).stdout
    goq("group", "set", "g", "--topic", topic, "nope=7", code=7)
    goq("group", "set", "g", "--topic", topic, "max_attempts", code=2)
    goq("group", "set", "g", "--topic", topic, code=2)
    header = goq("group", "show", "g", "--topic", topic).stdout.decode().splitlines()[0]
    assert header.split("\t")[2:8] == ["lag", "ready", "leased", "retry", "blocked", "scheduled"]
