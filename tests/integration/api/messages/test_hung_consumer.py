"""A consumer that hangs beside others: it costs each message at most one attempt."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tests.support.api.calls import group_of, publish, receive, settle, values, waiting
from tests.support.api.streams import StreamOfLines, streaming
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


@pytest.mark.parametrize("ordering", ["key", "none"])
@pytest.mark.parametrize("hung_count", [1, 3])
def test_hung_streams_stop_at_their_credit_and_no_message_dies(
    node: RunningNode, topic: str, ordering: str, hung_count: int
) -> None:
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"delivery": {"ordering": ordering}}})
    with ExitStack() as stack:
        hung = [
            stack.enter_context(_reading(node, topic, max_in_flight=5, visibility="150ms"))
            for _ in range(hung_count)
        ]
        good = stack.enter_context(_reading(node, topic, acks=True, max_in_flight=2))
        for number in range(60):
            publish(node, topic, f"{number}", key=f"k{number % 7}")
        eventually(lambda: group_of(node, topic)["lag"] == 0)
        assert group_of(node, topic)["dead"] == 0
        for taken in hung:
            assert max(Counter(taken).values(), default=0) <= 1
            assert len(taken) <= 5
        assert set(good) == {f"{number}" for number in range(60)}


def test_a_hung_stream_alone_gets_each_message_once(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abc", partition=0)
    with _reading(node, topic, max_in_flight=50, visibility="50ms") as taken:
        eventually(lambda: group_of(node, topic)["ready"] == 3 and len(taken) == 3)
        publish(node, topic, "d", partition=0)
        eventually(lambda: len(taken) == 4)
        eventually(lambda: group_of(node, topic)["ready"] == 4)
        assert sorted(taken) == list("abcd")


def _late(verb: str, **fields: Any) -> Callable[[RunningNode, str, StreamOfLines, str], Any]:
    return lambda node, topic, _stream, receipt: settle(node, topic, verb, receipt, **fields)


def _grant(node: RunningNode, topic: str, stream: StreamOfLines, _receipt: str) -> None:
    node.call("PATCH", f"/v1/topics/{topic}/groups/g/streams/{stream.id}", {"more": 1})


@pytest.mark.parametrize(
    "sign", [_late("ack"), _late("nack"), _late("reject"), _late("extend"), _grant]
)
def test_any_sign_of_life_returns_the_credit_of_expired_leases(
    node: RunningNode,
    topic: str,
    sign: Callable[[RunningNode, str, StreamOfLines, str], Any],
) -> None:
    publish(node, topic, "a", partition=0)
    with streaming(node, topic, max_in_flight=1, visibility="50ms") as stream:
        first = stream.message()
        eventually(lambda: group_of(node, topic)["ready"] == 1)
        sign(node, topic, stream, first["receipt"])
        assert stream.message()["attempt"] == 2


def test_settling_one_message_returns_the_credit_of_another(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a", "b", partition=0)
    with streaming(node, topic, max_in_flight=2, visibility="2s") as stream:
        first, second = stream.messages(2)
        settle(node, topic, "extend", second["receipt"], visibility="1h")
        eventually(lambda: group_of(node, topic)["ready"] == 1)
        settle(node, topic, "extend", second["receipt"], visibility="1h")
        again = stream.message()
        assert (again["value"], again["attempt"]) == (first["value"], 2)


def test_a_message_goes_to_another_than_who_let_it_expire_if_another_waits(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "a", partition=0)
    (held,) = receive(node, topic, consumer="slow", visibility="1h")
    taken: dict[str, list[str]] = {}

    def poll(consumer: str) -> None:
        found = receive(node, topic, consumer=consumer, wait="20s")
        taken[consumer] = values(found)
        settle(node, topic, "ack", *(m["receipt"] for m in found))

    pollers = [threading.Thread(target=poll, args=(name,)) for name in ("slow", "idle")]
    for number, poller in enumerate(pollers, 1):
        poller.start()
        eventually(lambda number=number: waiting(node, topic) == number)
    settle(node, topic, "extend", held["receipt"], visibility="50ms")
    eventually(lambda: "idle" in taken)
    assert taken == {"idle": ["a"]}
    assert settle(node, topic, "ack", held["receipt"])["failed"]
    publish(node, topic, "b", partition=0)
    for poller in pollers:
        poller.join(30)
    assert taken["slow"] == ["b"]


def test_a_message_comes_back_to_who_let_it_expire_if_nobody_else_waits(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "a", partition=0)
    for attempt in (1, 2, 3):
        (held,) = receive(node, topic, consumer="slow", visibility="50ms", wait="20s")
        assert held["attempt"] == attempt


@contextmanager
def _reading(
    node: RunningNode, topic: str, *, acks: bool = False, **asked: Any
) -> Iterator[list[str]]:
    """Read a stream in a thread, acknowledging all or nothing; yield the values so far."""
    found: list[str] = []
    with streaming(node, topic, **asked) as stream:

        def read() -> None:
            with suppress(AssertionError, OSError, ValueError, AttributeError):  # closed
                while True:
                    message = stream.message()
                    found.append(message["value"])
                    if acks:
                        settle(node, topic, "ack", message["receipt"])

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield found
        finally:
            with suppress(OSError):
                stream.socket.shutdown(2)
            reader.join(30)
