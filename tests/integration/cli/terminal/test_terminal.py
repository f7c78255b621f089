"""What a person sees: tables on a pseudo-terminal, with messages that try to break them."""

from __future__ import annotations

import json

import pytest

from goq.client import Client
from goq.errors import TopicNotFound
from tests.support.cli.command import Run
from tests.support.cli.pty import at_terminal
from tests.support.eventually import eventually

HOSTILE = (
    '{"path": "[/etc/passwd]"} [/x] [info] [bold red]no[/]',
    "\x1b[2J\x1b]0;title\x07\x9b31m\r\n\t\x00 \u202egnp.exe",
    "Grüße, 漢字かな交じり文, \U0001f44d\U0001f3fd, e\u0301",
    "\\[escaped\\] $(reboot) `reboot` %s {0} " + "long " * 400,
)
BINARY = b"\xff\xfe\x1b[31m"


@pytest.fixture
def hostile(topic: str, goq: Run, environment: dict[str, str]) -> str:
    """A topic with hostile messages: at once, scheduled, and as dead letters."""
    goq("topic", "create", topic, "--partitions", "1", "--set", "delivery.max_attempts=1")
    with Client(environment["GOQ_SERVER"]) as client:
        for text in HOSTILE:
            client.publish(topic, text, key=text[:50], headers={"[/h]": text}, tenant="[/t]")
            client.publish(topic, text, key=text[:50], delay="1h")
        client.publish(topic, BINARY, key=BINARY, headers={"binary": BINARY})
        for text in HOSTILE:
            for message in client.receive(topic, "g", max_messages=1):
                message.nack(delay=0, reason=text)
        client.receive(topic, "held", max_messages=2, visibility="1h", consumer="[/c]")
        eventually(lambda: letters_have_come(client, topic), "all are dead")
    return topic


def letters_have_come(client: Client, topic: str) -> bool:
    """Return whether all dead letters have come."""
    try:
        return len(client.list_dead_letters(topic).messages) == len(HOSTILE)
    except TopicNotFound:
        return False


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_message_breaks_a_table_or_reaches_the_terminal_as_a_command(
    hostile: str, environment: dict[str, str], columns: int
) -> None:
    with Client(environment["GOQ_SERVER"]) as client:
        [letter, *_] = client.list_dead_letters(hostile).messages
    wide = (
        ("peek", hostile),
        ("peek", hostile, "--group", "held"),
        ("peek", hostile, "--group", "held", "--state", "leased"),
        ("scheduled", "list", hostile),
        ("dlq", "list", hostile),
        ("group", "list"),
        ("topic", "list"),
    )
    tall = (
        ("message", "show", f"{hostile}:0:0"),
        ("dlq", "show", letter.raw["id"]),
        ("trace", f"{hostile}:0:0"),
        ("group", "show", "held", "--topic", hostile),
        ("consume", hostile),
    )
    for command in (*wide, *tall):
        screen = at_terminal(columns, environment, *command)
        assert screen.code == 0, (command, screen.text)
        assert all(line.replace("\t", "").isprintable() for line in screen.lines), command
        assert "Traceback" not in screen.text, command
        if command in wide:
            table = [line for line in screen.lines if not line.startswith("too narrow for:")]
            assert all(len(line) <= columns for line in table), command


def test_text_is_shown_as_it_is_and_bytes_that_are_none_as_hex(
    hostile: str, environment: dict[str, str]
) -> None:
    shown = at_terminal(400, environment, "peek", hostile).text
    assert '{"path": "[/etc/passwd]"} [/x] [info] [bold red]no[/]' in shown
    assert "Grüße, 漢字かな交じり文" in shown
    assert r"\x1b[2J\x1b]0;title\x07\x9b31m\r\n\t\x00 \u202egnp.exe" in shown
    assert f"hex:{BINARY.hex()}" in shown
    assert f"hex:{BINARY.hex()}" in at_terminal(80, environment, "consume", hostile).text


def test_a_pipe_gets_whole_cells_one_line_each(hostile: str, goq: Run) -> None:
    first, *rows = goq("peek", hostile).stdout.decode().split("\n")
    assert first.split("\t") == ["id", "timestamp", "attempt", "key", "value"]
    assert {len(row.split("\t")) for row in rows if row} == {5}
    assert HOSTILE[3] in rows[6]


def test_peek_in_json_tells_every_byte_of_a_message(hostile: str, goq: Run) -> None:
    found = json.loads(goq("peek", hostile, "--json").stdout)["messages"]
    assert [message["offset"] for message in found] == list(range(9))
    assert found[2]["value"] == HOSTILE[1]
    assert found[2]["headers"] == [{"name": "[/h]", "value": HOSTILE[1]}]
    assert found[8]["value_base64"] == found[8]["key_base64"] == "//4bWzMxbQ=="
    assert found[8]["headers"] == [{"name": "binary", "value_base64": "//4bWzMxbQ=="}]
    goq("produce", hostile, "--jsonl", stdin=b'{"value": null, "key": "k"}')
    assert json.loads(goq("peek", hostile, "--json").stdout)["messages"][9]["value"] is None


def test_json_at_a_terminal_is_the_same_document_without_control_characters(
    hostile: str, environment: dict[str, str]
) -> None:
    for command in (
        ("peek", hostile, "--json"),
        ("consume", hostile, "--json"),
        ("consume", hostile, "--format", r"%j\n"),
        ("trace", f"{hostile}:0:2", "--json"),
    ):
        screen = at_terminal(4000, environment, *command)
        assert all(line.isprintable() for line in screen.lines), command
        documents = [json.loads(line) for line in screen.lines if line.startswith("{")]
        assert HOSTILE[1][:50] in texts(documents), command


def texts(document: object) -> str:
    """Return all texts of a document, one behind the other."""
    if isinstance(document, dict):
        return "".join(map(texts, document.values()))
    if isinstance(document, list):
        return "".join(map(texts, document))
    return document if isinstance(document, str) else ""


def test_tables_have_air_between_them_and_sizes_have_units(
    hostile: str, environment: dict[str, str]
) -> None:
    screen = at_terminal(200, environment, "group", "show", "held", "--topic", hostile)
    lag = next(n for n, line in enumerate(screen.lines) if line.startswith("partition"))
    assert screen.lines[lag - 1] == ""
    assert "oldest ready" in screen.lines[0]
    assert "KiB" in at_terminal(200, environment, "topic", "list").text
