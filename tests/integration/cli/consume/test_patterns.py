"""``goq consume`` of several topics, and of topics by pattern, that are created meanwhile too."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from goq import limits
from goq.client import AsyncClient, Client
from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq
from tests.support.eventually import eventually

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Start ``goq`` with its output in a pipe."""
    started = []

    def run(*arguments: str) -> subprocess.Popen[bytes]:
        process = start_goq([*arguments], stdout=subprocess.PIPE, env=environment, bufsize=0)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def publish(goq: Run, topic: str, *lines: str) -> None:
    goq("produce", topic, "--key", "k", stdin="".join(f"{text}\n" for text in lines).encode())


def test_topics_of_a_pattern_are_merged_by_time_without_their_dead_letters(
    goq: Run, topic: str
) -> None:
    publish(goq, f"{topic}.a", "1")
    publish(goq, f"{topic}.b", "2")
    publish(goq, f"{topic}.a.dlq", "dead")
    publish(goq, f"{topic}.a", "3")
    publish(goq, "else", "no")
    assert goq("consume", f"{topic}.*").stdout == b"1\n2\n3\n"
    assert goq("consume", f"{topic}.*", "--last", "2").stdout == b"2\n3\n"
    assert goq("consume", f"{topic}.[b-z]", f"{topic}.a").stdout == b"1\n2\n3\n"
    assert goq("consume", f"{topic}.*.dlq").stdout == b"dead\n"
    done = goq("consume", f"{topic}.*", "--group", "g", "--until-empty", "--format", r"%t %v\n")
    assert sorted(done.stdout.decode().splitlines()) == [
        f"{topic}.a 1",
        f"{topic}.a 3",
        f"{topic}.b 2",
    ]
    assert goq("consume", f"{topic}.*", "--group", "g", "--until-empty").stdout == b""


def test_a_pattern_without_a_topic_is_told(goq: Run, topic: str) -> None:
    told = f"no topic matches {topic}-*".encode()
    assert told in goq("consume", f"{topic}-*", code=3).stderr
    for more in (("--group", "g", "--until-empty"), ("-f", "--no-wait-topic")):
        assert told in goq("consume", f"{topic}-*", *more, code=3).stderr
    publish(goq, topic, "1")
    assert b"there is no topic" in goq("consume", topic, f"{topic}-b", code=3).stderr


@pytest.mark.parametrize("options", [("-f",), ("--group", "g")])
def test_topics_are_found_as_they_are_created(
    goq: Run, topic: str, start: Start, options: tuple[str, ...]
) -> None:
    publish(goq, f"{topic}.a", "old")
    if options == ("-f",):
        options = ("-f", "--from-beginning")
    consumer = start("consume", f"{topic}.*", *options)
    assert line(consumer) == b"old\n"
    publish(goq, f"{topic}.b", "first", "second")
    assert [line(consumer), line(consumer)] == [b"first\n", b"second\n"]
    publish(goq, f"{topic}.a", "on")
    assert line(consumer) == b"on\n"


@pytest.mark.parametrize("options", [("-f", "--from-beginning"), ("--group", "g")])
def test_a_topic_of_a_pattern_may_be_deleted_and_come_back(
    goq: Run, topic: str, start: Start, options: tuple[str, ...]
) -> None:
    publish(goq, f"{topic}.a", "1")
    consumer = start("consume", f"{topic}.*", *options)
    assert line(consumer) == b"1\n"
    goq("topic", "delete", f"{topic}.a", "--yes")
    publish(goq, f"{topic}.b", "between")
    assert line(consumer) == b"between\n"
    publish(goq, f"{topic}.a", "back")
    assert line(consumer) == b"back\n"


def test_a_topic_may_be_deleted_while_a_command_handles_its_message(
    goq: Run, topic: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    wait = f"echo >> {begun}; while [ ! -e {go_on} ]; do sleep 0.02; done; cat"
    publish(goq, f"{topic}.a", "1")
    options = ("--group", "g", "--max", "2", "--exec", wait)
    consumer = start_goq(
        ["consume", f"{topic}.*", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    eventually(begun.exists)
    goq("topic", "delete", f"{topic}.a", "--yes")
    go_on.touch()
    publish(goq, f"{topic}.b", "2")
    _, told = consumer.communicate(timeout=60)
    assert told == b"goq: 1 receipt was not acknowledged: the topic was deleted meanwhile\n"
    assert consumer.returncode == 1
    assert goq("consume", f"{topic}.b", "--group", "g", "--until-empty").stdout == b""


def test_several_topics_are_followed_and_one_may_be_created_later(
    goq: Run, topic: str, start: Start
) -> None:
    publish(goq, topic, "1")
    consumer = start("consume", topic, f"{topic}-later", "-f", "--last", "1", "--max", "3")
    assert line(consumer) == b"1\n"
    publish(goq, f"{topic}-later", "2")
    assert line(consumer) == b"2\n"
    publish(goq, topic, "3")
    assert line(consumer) == b"3\n"
    assert consumer.wait(60) == 0


def test_the_asynchronous_client_follows_patterns(
    goq: Run, topic: str, environment: dict[str, str]
) -> None:
    publish(goq, f"{topic}.a", "1")
    asyncio.run(asyncio.wait_for(_follow_and_consume(environment, topic), 60))


async def _follow_and_consume(environment: dict[str, str], topic: str) -> None:
    async with AsyncClient(environment["GOQ_SERVER"]) as client:
        messages = client.read_log(f"{topic}.*", follow=True)
        assert (await anext(messages)).value == b"1"
        await client.publish(f"{topic}.b", b"2")
        assert (await anext(messages)).value == b"2"
        await messages.aclose()
        received = client.consume(f"{topic}.*", group="g", max_messages=2)
        assert sorted([message.value async for message in received]) == [b"1", b"2"]


def test_a_loop_reads_a_bounded_number_of_topics(
    topic: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PATTERN_TOPICS_MAX", 2)
    with Client(environment["GOQ_SERVER"]) as client:
        for name in "ab":
            client.publish(f"{topic}.{name}", name)
        assert len(list(client.read_log(f"{topic}.*"))) == 2
        client.create_topic(f"{topic}.c")
        with pytest.raises(Exception, match="matches 3 topics; one loop reads at most 2"):
            list(client.read_log(f"{topic}.*"))
        with pytest.raises(Exception, match="matches 3 topics"):
            list(client.consume(f"{topic}.*", group="g", until_empty=True))
