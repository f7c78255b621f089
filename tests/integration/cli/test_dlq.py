from __future__ import annotations

import json
import re
import subprocess
import time
from typing import Any

import pytest

from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


def die(node: RunningNode, topic: str, *values: str, reason: str = "broken", **more: Any) -> None:
    """Let messages die in a group."""
    messages = [{"value": value, "partition": 0, **more} for value in values]
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
    group = f"/v1/topics/{topic}/groups/g"
    asked = {"max_messages": 100, "wait": "5s"}
    received = node.call("POST", f"{group}/receive", asked)["messages"]
    receipts = [message["receipt"] for message in received]
    node.call("POST", f"{group}/reject", {"receipts": receipts, "reason": reason})
    eventually(lambda: {letter["value"] for letter in letters(node, topic)} >= set(values))


def letters(node: RunningNode, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.call("GET", f"/v1/topics/{topic}/dead")["messages"]
    return found


def test_dead_letters_are_listed_as_lines_and_as_json(
    goq: Run, node: RunningNode, topic: str
) -> None:
    die(node, topic, "a", "b", key="k", reason="no\x1b[31m such")
    lines = goq("dlq", "list", topic).stdout.decode().splitlines()
    assert lines[0].split("\t")[:2] == ["id", "origin"]
    assert len(lines) == 3
    cells = lines[1].split("\t")
    assert cells[:2] == [f"{topic}.dlq:0:0", f"{topic}:0:0"]
    assert cells[3:] == ["g", "1", "rejected", "no\\x1b[31m such", "k", "0"]
    found = json.loads(goq("dlq", "list", f"{topic}.dlq", "--json").stdout)["messages"]
    assert found == letters(node, topic)
    assert len(goq("dlq", "list", topic, "--limit", "1").stdout.splitlines()) == 2
    assert len(goq("dlq", "list", topic, "--key", "other").stdout.splitlines()) == 1


def test_a_dead_letter_is_shown_by_its_id_of_now_and_of_before(
    goq: Run, node: RunningNode, topic: str
) -> None:
    die(node, topic, "a", headers={"source": "shop"})
    for message_id in (f"{topic}.dlq:0:0", f"{topic}:0:0"):
        shown = goq("dlq", "show", message_id).stdout.decode()
        assert "header source\tshop" in shown
        assert "reason\tbroken" in shown
        assert "time\tcause\tconsumer\treason" in shown
    assert json.loads(goq("dlq", "show", f"{topic}:0:0", "--json").stdout)["value"] == "a"
    assert b"goq dlq list" in goq("dlq", "show", f"{topic}:0:9", code=3).stderr
    goq("dlq", "show", "nonsense", code=7)


def test_a_redrive_puts_back_what_the_options_say(goq: Run, node: RunningNode, topic: str) -> None:
    die(node, topic, "a", "b", "c")
    die(node, topic, "d", reason="other")
    dry = goq("dlq", "redrive", topic, "--reason", "broken", "--dry-run", "--json")
    assert json.loads(dry.stdout)["redriven"] == 3
    assert len(letters(node, topic)) == 4
    done = goq("dlq", "redrive", topic, "--reason", "broken", "--limit", "2")
    assert done.stdout == (b"matched\tredriven\tlooped\tlost\twithout_origin\n2\t2\t0\t0\t0\n")
    one = goq("dlq", "redrive", topic, "--id", f"{topic}.dlq:0:3", "--json")
    assert json.loads(one.stdout)["redriven"] == 1
    assert [letter["value"] for letter in letters(node, topic)] == ["c"]
    goq("dlq", "redrive", topic, "--cause", "bad", code=7)
    goq("dlq", "redrive", topic, "--to", f"{topic}-none", code=3)
    goq("dlq", "redrive", f"{topic}-none", code=3)


def test_a_redrive_that_leaves_letters_says_so_and_exits_with_1(
    goq: Run, node: RunningNode, topic: str
) -> None:
    die(node, topic, "a")
    goq("produce", f"{topic}.dlq", stdin=b"never failed\n")
    dry = goq("dlq", "redrive", topic, "--dry-run")
    done = goq("dlq", "redrive", topic, "--json", code=1)
    for said in (dry.stderr, done.stderr):
        assert b"goq: 1 stay: they were published there and never failed" in said
    total = json.loads(done.stdout)
    assert (total["matched"], total["redriven"], total["without_origin"]) == (2, 1, 1)


def test_an_exact_reason_narrows_a_list_a_redrive_and_a_purge(
    goq: Run, node: RunningNode, topic: str
) -> None:
    die(node, topic, "a", reason="broken")
    die(node, topic, "b", reason="broken pipe")
    die(node, topic, "c", reason="")
    for reason, value in (("broken", "a"), ("", "c")):
        found = json.loads(goq("dlq", "list", topic, "--reason-is", reason, "--json").stdout)
        assert [letter["value"] for letter in found["messages"]] == [value]
    asked = goq("dlq", "purge", topic, "--reason-is", "", code=2).stderr
    assert b"Purge these dead letters" in asked
    goq("dlq", "purge", topic, "--reason-is", "", "--yes")
    goq("dlq", "redrive", topic, "--reason-is", "broken")
    assert [letter["value"] for letter in letters(node, topic)] == ["b"]


def test_a_paced_redrive_takes_its_time_and_takes_all(
    goq: Run, node: RunningNode, topic: str
) -> None:
    die(node, topic, *"abcdef")
    began_s = time.monotonic()
    done = goq("dlq", "redrive", topic, "--rate", "10", "--json")
    assert time.monotonic() - began_s >= 0.5
    assert json.loads(done.stdout)["redriven"] == 6
    assert letters(node, topic) == []


def test_a_purge_asks_first_and_then_takes_what_was_meant(
    goq: Run, node: RunningNode, topic: str
) -> None:
    die(node, topic, "a", key="k")
    die(node, topic, "b")
    assert b"--yes" in goq("dlq", "purge", topic, code=2).stderr
    dry = goq("dlq", "purge", topic, "--dry-run", "--json")
    assert json.loads(dry.stdout) == {"dry_run": True, "matched": 2, "purged": 2}
    goq("dlq", "purge", topic, "--key", "k", "--yes")
    assert [letter["value"] for letter in letters(node, topic)] == ["b"]
    assert goq("dlq", "purge", topic, "--yes").stdout == b"matched\tpurged\n1\t1\n"
    assert goq("dlq", "list", topic, "--json").stdout == b'{"messages":[]}\n'


@pytest.mark.parametrize("command", [("redrive",), ("redrive", "--dry-run"), ("purge", "--yes")])
def test_ids_of_no_dead_letter_are_told_by_the_exit_code(
    goq: Run, node: RunningNode, topic: str, command: tuple[str, ...]
) -> None:
    die(node, topic, "a")
    verb, *options = command
    gone, there = ("--id", f"{topic}.dlq:0:7"), ("--id", f"{topic}.dlq:0:0")
    refused = goq("dlq", verb, topic, *options, *gone, code=3).stderr
    assert f"goq dlq list {topic}".encode() in refused
    assert len(letters(node, topic)) == 1
    partly = goq("dlq", verb, topic, *options, *gone, *there, code=1)
    assert partly.stdout.splitlines()[1].startswith(b"1\t1")
    assert b"1 of the ids" in partly.stderr


def test_a_redrive_that_fails_says_how_many_were_redriven_before(
    goq: Run, environment: dict[str, str], node: RunningNode, topic: str
) -> None:
    die(node, topic, *map(str, range(60)))
    words = ["dlq", "redrive", topic, "--rate", "1"]
    with start_goq(words, stderr=subprocess.PIPE, env=environment) as redrive:
        eventually(lambda: len(letters(node, topic)) < 60)
        for name in (topic, f"{topic}.dlq"):
            node.call("DELETE", f"/v1/topics/{name}")
        _, said = redrive.communicate(timeout=60)
    assert redrive.returncode == 3
    assert re.search(rb"goq: \d+ were redriven before\n", said)
