"""Output that cannot be written, streams that are closed, and arguments that are not UTF-8."""

from __future__ import annotations

import subprocess
import sys

import pytest

from goq.client import Client
from tests.support.cli.command import Run

FULL = b"goq: the output: No space left on device\n"
CLOSED = b"goq: the output: Bad file descriptor\n"


def shell(environment: dict[str, str], words: str) -> subprocess.CompletedProcess[bytes]:
    command = words.replace("goq ", f"{sys.executable} -P -m goq_cli ")
    return subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("goq version > /dev/full", 1, FULL),
        ("goq consume TOPIC > /dev/full", 1, FULL),
        ("goq consume TOPIC --group g --until-empty > /dev/full", 1, FULL),
        ("goq consume TOPIC --group g --until-empty >&-", 1, CLOSED),
        ("echo x | goq produce TOPIC --print-ids >&-", 1, CLOSED),
        ("goq produce TOPIC <&-", 2, b"goq: cannot read stdin: Bad file descriptor\n"),
        ("goq version >&- 2>&-", 1, b""),
        (
            "XDG_CONFIG_HOME=/proc/x goq --server http://a context set a",
            1,
            b"goq: /proc/x: No such file or directory\n",
        ),
    ],
)
def test_a_stream_or_a_file_that_fails_is_told_in_one_line(
    goq: Run, environment: dict[str, str], topic: str, words: str, code: int, said: bytes
) -> None:
    goq("produce", topic, stdin=b"line\n")
    done = shell(environment, words.replace("TOPIC", topic))
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.startswith(said)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("stderr", ["2> >(exec true)", "2> /dev/full", "2>&-"])
@pytest.mark.parametrize(("words", "code"), [("topic show none", 3), ("topic show", 2)])
def test_an_error_that_cannot_be_printed_has_its_exit_code(
    environment: dict[str, str], words: str, code: int, stderr: str
) -> None:
    done = shell(environment, f"goq {words} {stderr}")
    assert (done.returncode, done.stdout) == (code, b"")


@pytest.mark.parametrize("how", ["--exec", "--coproc"])
def test_messages_are_acknowledged_although_stderr_cannot_be_written(
    goq: Run, environment: dict[str, str], topic: str, how: str
) -> None:
    goq("produce", topic, stdin=b"a\nb\nc\n")
    work = "while read x; do echo $x >&2; echo ok; done" if how == "--coproc" else "cat >&2"
    consume = f"goq consume {topic} --group g --until-empty"
    done = shell(environment, f"{consume} {how} '{work}' 2> /dev/full")
    assert done.returncode == 0
    assert shell(environment, consume).stdout == b""


@pytest.mark.parametrize(
    ("reader", "said"),
    [("| head -n 1", b"goq: the output: Broken pipe\n"), ("> /dev/full", FULL)],
)
def test_a_publish_whose_ids_cannot_be_printed_fails_and_counts_what_is_stored(
    environment: dict[str, str], topic: str, reader: str, said: bytes
) -> None:
    produce = f"seq 100000 | goq produce {topic} --batch 100 --print-ids {reader}"
    done = shell(environment, f"{produce}; exit ${{PIPESTATUS[1]}}")
    with Client(environment["GOQ_SERVER"]) as client:
        stored = len(list(client.read_log(topic)))
    assert done.returncode == 1
    assert done.stderr == said + f"goq: {stored:,} messages were stored\n".encode()


def test_messages_that_could_not_be_printed_are_given_back_without_an_attempt(
    goq: Run, environment: dict[str, str], topic: str
) -> None:
    goq("produce", topic, stdin=b"line\n")
    for _ in range(5):  # over max_attempts
        shell(environment, f"goq consume {topic} --group g --until-empty > /dev/full")
    with Client(environment["GOQ_SERVER"]) as client:
        (message,) = client.receive(topic, "g", wait="20s")
    assert message.attempt == 1


def test_arguments_that_are_not_utf8_are_published_as_they_are(
    environment: dict[str, str], topic: str
) -> None:
    options = r"--key $'k\xff' --header $'h=\xfe' --delimiter $'\xfd'"
    done = shell(environment, rf"printf 'a\xfdb\xfd' | goq produce {topic} {options}")
    assert (done.returncode, done.stderr) == (0, b"")
    with Client(environment["GOQ_SERVER"]) as client:
        messages = list(client.read_log(topic))
    assert [message.value for message in messages] == [b"a", b"b"]
    assert {(message.key, *message.headers) for message in messages} == {(b"k\xff", ("h", b"\xfe"))}


@pytest.mark.parametrize(
    "words",
    [r"echo x | goq produce TOPIC --header $'\xff=a'", r"goq topic create $'\xff'"],
)
def test_names_that_are_not_utf8_are_refused(
    environment: dict[str, str], topic: str, words: str
) -> None:
    done = shell(environment, words.replace("TOPIC", topic))
    assert done.returncode == 7
    assert b"UTF-8 cannot hold" in done.stderr


def test_pipes_get_utf_8_in_any_locale_and_a_terminal_what_its_encoding_has(
    goq: Run, environment: dict[str, str], topic: str
) -> None:
    goq("produce", topic, "--key", "schlüssel", stdin="grüße €\n".encode())
    latin = environment | {"PYTHONIOENCODING": "iso-8859-1"}
    for words in ("--json peek", "peek", "consume --format '%k %v\\n'"):
        done = shell(latin, f"goq {words} {topic}")
        assert (done.returncode, done.stderr) == (0, b"")
        assert "schlüssel" in (text := done.stdout.decode())
        assert "grüße €" in text
    shown = shell(latin, f"script -qec 'goq peek {topic}' /dev/null < /dev/null")
    assert "grüße \\u20ac" in shown.stdout.decode("iso-8859-1")
