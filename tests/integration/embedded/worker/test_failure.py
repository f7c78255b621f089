"""Whatever a function raises, its message is settled, and the others are handled."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

import goq
from goq.client import ReceivedMessage
from goq.worker.event_loop import EventLoopThread
from tests.support.client.interrupts import is_done as can_be_done
from tests.support.client.worker_app import is_done, running, state_of
from tests.support.eventually import eventually


class OwnError(BaseException):
    pass


class TextlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class Checked:
    id: int

    def __post_init__(self) -> None:
        raise KeyError(self.id)


ERRORS = [
    OwnError(),
    TextlessError(),
    ValueError("half a pair: \udcff"),
    GeneratorExit(),
    StopIteration(),
    asyncio.CancelledError(),
]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_any_error_fails_its_message_and_the_worker_goes_on(
    goq_node: goq.Node,
    goq_client: goq.Client,
    error: BaseException,
    is_async: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a test logs is in its report, which processes of a run exchange as UTF-8.
    monkeypatch.setattr(logging.getLogger("goq.worker"), "disabled", True)
    app = goq.WorkerApp(goq_node.url)
    ran: list[bytes] = []

    def work(value: bytes) -> None:
        if value == b"bad":
            raise error
        ran.append(value)

    async def work_async(value: bytes) -> None:
        work(value)

    app.worker("failing", group="g", retry="1h")(work_async if is_async else work)
    goq_client.publish_many("failing", [b"bad", b"good"])
    with running(app):
        eventually(lambda: state_of(goq_client, "failing") == (1, 0, 1), "one waits for a retry")
    assert ran == [b"good"]


def test_a_check_of_the_values_type_that_fails_otherwise_fails_the_message(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)

    @app.worker("checked", group="g", retry="1h")
    def work(value: Checked) -> None: ...

    goq_client.publish("checked", b'{"id": 1}')
    with running(app):
        eventually(lambda: state_of(goq_client, "checked") == (1, 0, 1), "it waits for its retry")


def test_several_errors_may_be_declared_as_a_list(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)

    @app.worker("listed", group="g", retry="1h", reject_on=[KeyError, ZeroDivisionError])
    def work(value: bytes) -> float:
        return 1 / 0

    goq_client.publish("listed", b"1")
    with running(app):
        eventually(lambda: goq_client.list_dead_letters("listed").messages, "a dead letter")


def exits() -> NoReturn:
    sys.exit("cannot go on")


def interrupts() -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["plain", "async", "task"])
@pytest.mark.parametrize(("leave", "kind"), [(exits, SystemExit), (interrupts, KeyboardInterrupt)])
def test_an_exit_fails_its_message_and_stops_the_app_in_order(
    goq_node: goq.Node,
    goq_client: goq.Client,
    leave: Callable[[], NoReturn],
    kind: type[BaseException],
    how: str,
) -> None:
    app = goq.WorkerApp(goq_node.url)
    other_runs, leaving, ended = threading.Event(), threading.Event(), threading.Event()

    def work(value: bytes) -> None:
        if value == b"other":
            other_runs.set()
            assert leaving.wait(30)
            ended.set()
        else:
            assert other_runs.wait(30)
            leaving.set()
            leave()

    async def leave_soon() -> None:
        leave()

    async def work_async(value: bytes) -> None:
        if how == "task" and value == b"bad":
            await asyncio.gather(leave_soon(), asyncio.to_thread(other_runs.wait, 30))
        elif value == b"bad":
            await asyncio.to_thread(other_runs.wait, 30)
            leaving.set()
            leave()
        else:
            await asyncio.to_thread(work, value)

    if how == "task":
        leaving.set()
    app.worker("exits", group="g", retry="1h", concurrency=2)(
        work if how == "plain" else work_async
    )
    goq_client.publish_many("exits", [b"other", b"bad"])
    with running(app) as errors:
        eventually(lambda: errors, "the run ends by itself")
    assert [type(error) for error in errors] == [kind]
    assert ended.is_set()
    assert state_of(goq_client, "exits") == (1, 0, 1)


def test_a_message_that_cannot_be_settled_comes_again_when_its_lease_ends(
    goq_node: goq.Node, goq_client: goq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = goq.WorkerApp(goq_node.url)
    attempts: list[int] = []
    ack = ReceivedMessage.ack

    def ack_second(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            raise RuntimeError("a bug")
        ack(message)

    monkeypatch.setattr(ReceivedMessage, "ack", ack_second)

    @app.worker("unsettled", group="g", visibility="500ms")
    def work(message: ReceivedMessage) -> None:
        attempts.append(message.attempt)

    goq_client.publish("unsettled", b"1")
    with running(app):
        eventually(lambda: attempts[1:], "it comes again")
        eventually(is_done(goq_client, "unsettled"), "it is settled")
    assert attempts[:2] == [1, 2]


def test_a_function_may_settle_its_message_itself(
    goq_node: goq.Node, goq_client: goq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    app = goq.WorkerApp(goq_node.url)

    @app.worker("own", group="g")
    def work(value: bytes, message: ReceivedMessage) -> None:
        message.nack("1h", "later") if value == b"later" else message.reject("never")

    goq_client.publish_many("own", [b"later", b"never"])
    with running(app):
        eventually(lambda: state_of(goq_client, "own") == (1, 0, 1), "both are settled")
    eventually(lambda: goq_client.list_dead_letters("own").messages, "a dead letter")
    letters: Any = goq_client.list_dead_letters("own").messages
    assert [letter.raw["reason"] for letter in letters] == ["never"]
    assert [record for record in caplog.records if record.name == "goq.worker"] == []


class Awaited:
    """What a function may return, and no coroutine, which warns if it never runs."""

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(0).__await__()
        return "done"


def test_an_event_loop_whose_thread_could_not_start_is_started_for_the_next_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found: list[object] = []
    with EventLoopThread(lambda _error: None) as event_loop:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="new thread"):
                event_loop.run(Awaited())
        assert can_be_done(lambda: found.append(event_loop.run(Awaited())))
    assert found == ["done"]


def test_a_worker_settles_a_message_only_for_as_long_as_it_is_leased(
    goq_node: goq.Node, goq_client: goq.Client
) -> None:
    app = goq.WorkerApp(goq_node.url)
    given_up: list[bool] = []
    app.worker("bound", group="g")(lambda m: given_up.append(m.is_given_up_with_lease))
    goq_client.publish("bound", b"1")
    with running(app):
        eventually(is_done(goq_client, "bound"), "it is settled")
    assert given_up == [True]
