"""``goq trace`` against a server that tells recorded traces."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq
from tests.support.client.trace_server import (
    EXPIRED_ONCE,
    GONE,
    THERE_AND_BACK,
    TraceServer,
    message,
    step,
    trace,
    trace_server,
)
from tests.support.paths import REPOSITORY

ID = "orders:2:45678"
GOLDEN = REPOSITORY / "tests" / "support" / "cli" / "golden"


@pytest.fixture
def server() -> Iterator[TraceServer]:
    with trace_server(EXPIRED_ONCE) as server:
        yield server


def start(server: TraceServer, *arguments: str, **more: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"GOQ_SERVER": server.url, "NO_COLOR": "1", "PYTHONUNBUFFERED": ""}
    return start_goq(
        ["trace", *arguments],
        env=environment,
        stdout=more.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def wait_for_asking(server: TraceServer, seen: int) -> None:
    """Wait until the command waits for more than ``seen`` events."""

    def asked() -> bool:
        return any(query.get("seen") == str(seen) for _, query in server.requests)

    with server.changed:
        assert server.changed.wait_for(asked, timeout=30)


def test_a_message_is_traced_by_its_id(goq: Run, server: TraceServer) -> None:
    done = goq("trace", ID, GOQ_SERVER=server.url)
    assert done.stdout.decode() == (GOLDEN / "trace-expired-once.txt").read_text()
    assert done.stderr == b""
    assert server.requests == [(f"/v1/messages/{ID}/trace", {})]


def test_json_is_what_the_node_says(goq: Run, server: TraceServer) -> None:
    assert json.loads(goq("trace", ID, "--json", GOQ_SERVER=server.url).stdout) == EXPIRED_ONCE


def test_an_unknown_id_ends_with_3_and_what_the_node_knows(goq: Run, server: TraceServer) -> None:
    done = goq("trace", "orders:2:99999", code=3, GOQ_SERVER=server.url)
    assert (done.stdout, done.stderr.decode()) == (
        b"",
        "goq: there is no message orders:2:99999; partition 2 has 40000 to 45677\n",
    )


def test_what_is_not_known_is_a_warning_beside_the_timeline(goq: Run) -> None:
    with trace_server(GONE) as server:
        done = goq("trace", ID, GOQ_SERVER=server.url)
    assert done.stderr.decode().splitlines() == [
        f"goq: the trace of {ID} is incomplete: steps up to 2025-01-15 10:29:00.000000Z may be"
        " missing: older events were deleted",
        f"goq: the trace of {ID} is incomplete: steps may be missing: events are damaged",
    ]


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        (("--key", "Zoë"), {"key_base64": "Wm/Dqw=="}),
        (("--dedup-id", "mail-1"), {"dedup_id": "mail-1"}),
        (("--header", "source=a=b"), {"header": "source=a=b"}),
        (
            ("--key", "k", "--from-time", "-2h", "--to-time", "now", "--limit", "3"),
            {"key_base64": "aw==", "from_time": "-2h", "to_time": "now", "limit": "3"},
        ),
    ],
)
def test_messages_are_found_by_what_is_known_of_them(
    goq: Run, server: TraceServer, arguments: tuple[str, ...], query: dict[str, str]
) -> None:
    done = goq("trace", "orders", *arguments, GOQ_SERVER=server.url)
    assert done.stdout.decode() == (GOLDEN / "trace-expired-once.txt").read_text()
    assert server.requests == [("/v1/topics/orders/trace", {"limit": "10", **query})]


def test_several_messages_are_told_one_below_the_other(goq: Run) -> None:
    other = trace([], message("orders:2:45679"))
    with trace_server(EXPIRED_ONCE, other) as server:
        found = goq("trace", "orders", "--key", "k", GOQ_SERVER=server.url).stdout.decode()
        assert found.count("\n\nMessage    orders:2:45679\n") == 1
        found_json = json.loads(
            goq("trace", "orders", "--key", "k", "--json", GOQ_SERVER=server.url).stdout
        )
        assert found_json == {"traces": [EXPIRED_ONCE, other], "next": None}


def test_a_search_goes_on_page_by_page_until_it_has_enough(goq: Run, server: TraceServer) -> None:
    other = trace([], message("orders:2:45679"))
    pages = [
        {"traces": [], "next": "a"},
        {"traces": [EXPIRED_ONCE], "next": "b"},
        {"traces": [other], "next": "c"},
    ]
    server.pages = list(pages)
    search = ("trace", "orders", "--key", "k", "--limit", "2", "--json")
    found = json.loads(goq(*search, GOQ_SERVER=server.url).stdout)
    assert found == {"traces": [EXPIRED_ONCE, other], "next": "c"}
    asked = [(query["limit"], query.get("cursor")) for _, query in server.requests]
    assert asked == [("2", None), ("2", "a"), ("1", "b")]


def test_a_search_that_finds_nothing_ends_with_3(goq: Run, server: TraceServer) -> None:
    server.pages = [{"traces": [], "next": "a"}, {"traces": [], "next": None}]
    done = goq("trace", "orders", "--key", "k", code=3, GOQ_SERVER=server.url)
    assert done.stderr == b"goq: topic orders has no such message\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("orders",),
        ("orders", "--key", "k", "--header", "a=b"),
        ("orders", "--header", "a"),
        ("orders", "--limit", "1"),
        (ID, "--key", "k"),
        (ID, "--limit", "1"),
        (ID, "--from-time", "-1h"),
        (ID, "--follow", "--otlp", "http://127.0.0.1:4318"),
        ("orders", "--key", "k", "--limit", "0"),
        ("orders", "--key", "k", "--limit", "2", "--follow"),
    ],
)
def test_what_does_not_go_together_is_refused(
    goq: Run, server: TraceServer, arguments: tuple[str, ...]
) -> None:
    assert goq("trace", *arguments, code=2, GOQ_SERVER=server.url).stdout == b""
    assert server.requests == []


def test_steps_are_told_as_they_come_until_interrupted(server: TraceServer) -> None:
    events = EXPIRED_ONCE["events"]
    server.traces[ID]["events"] = events[:2]
    process = start(server, ID, "--follow")
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(5)]
    assert told[-1].split()[2] == "DELIVERED"
    wait_for_asking(server, 2)
    server.add(ID, *events[2:4])
    assert [process.stdout.readline().split()[2] for _ in range(2)] == ["EXPIRED", "DELIVERED"]
    wait_for_asking(server, 4)
    server.add(ID, events[4])
    assert process.stdout.readline().split()[2] == "ACKNOWLEDGED"
    wait_for_asking(server, 5)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


def test_a_step_that_was_written_late_is_told_when_it_is_known(server: TraceServer) -> None:
    events = EXPIRED_ONCE["events"]
    server.traces[ID]["events"] = [events[0], events[4]]
    process = start(server, ID, "--follow", "--json")
    assert process.stdout is not None
    assert [json.loads(process.stdout.readline()) for _ in range(2)] == [events[0], events[4]]
    wait_for_asking(server, 2)
    with server.changed:
        server.traces[ID]["events"][1:1] = events[1:3]
        server.traces[ID]["events"][3] = events[4] | {"more": "is known"}
        server.changed.notify_all()
    assert [json.loads(process.stdout.readline()) for _ in range(2)] == events[1:3]
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 143


def test_following_a_key_is_following_the_newest_message_with_it(server: TraceServer) -> None:
    process = start(server, "orders", "--key", "order-123", "--follow")
    wait_for_asking(server, 5)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    assert printed.startswith(f"Message    {ID}\n")
    assert server.requests[0][1]["limit"] == "1"


def test_a_reader_that_has_seen_enough_ends_it_quietly(server: TraceServer) -> None:
    process = start(server, ID, "--follow")
    assert process.stdout is not None
    process.stdout.readline()
    wait_for_asking(server, 5)
    process.stdout.close()
    server.add(ID, step("10:40:00.000000", "ARCHIVED"))
    assert process.wait(30) == 0
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == ""


def on_terminal(server: TraceServer, columns: int, **environment: str) -> str:
    """Return what is printed on a terminal of a width."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "goq_cli", "trace", ID],
        env={**os.environ, "GOQ_SERVER": server.url, "COLUMNS": str(columns), **environment},
        stdout=theirs,
        timeout=60,
        check=True,
    )
    assert done.returncode == 0
    os.close(theirs)
    printed = b""
    try:
        while piece := os.read(ours, 65536):
            printed += piece
    except OSError:
        pass  # the other end is closed
    os.close(ours)
    return printed.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_no_line_wider_than_itself() -> None:
    with trace_server(THERE_AND_BACK) as server:
        coloured = on_terminal(server, 100, TERM="xterm", NO_COLOR="")
        plain = on_terminal(server, 60, TERM="xterm", NO_COLOR="1")
        dumb = on_terminal(server, 60, TERM="dumb", NO_COLOR="")
    assert "\x1b[32m" in coloured
    assert "\x1b" not in plain
    assert plain == dumb
    assert max(map(len, plain.splitlines())) == 60
