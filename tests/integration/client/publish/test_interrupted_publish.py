"""Signal handlers that raise in a publish or a send, at each moment at which Python runs them."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from goq.client import Client, Published
from goq.client._sync.publish.direct_publisher import DirectPublisher
from goq.model import Message
from tests.support.client.fake_node import FakeNode
from tests.support.client.interrupts import (
    WAIT_S_MAX,
    Interrupted,
    TimeLimit,
    interrupted_at,
    is_done,
)
from tests.support.eventually import eventually

PUBLISHER = ("publisher.py", "message_batch.py")
PRODUCER = ("producer.py", "message_batch.py", "runtime.py")
NEVER = "1h"
OTHERS = [b"other 0", b"other 1"]

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="another tracer counts instructions too"
)


class MainFirst:
    """A lock that other threads get only once they may."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.others_may = threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert self.others_may.wait(WAIT_S_MAX)
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def direct_publisher(client: Client) -> tuple[DirectPublisher, MainFirst]:
    publisher, lock = client._direct_publisher("orders", None), MainFirst()
    publisher._lock = lock
    return publisher, lock


def started(call: Callable[[bytes], Published], outcomes: dict[bytes, object]) -> None:
    """Publish the messages of the other threads."""

    def run(value: bytes) -> None:
        try:
            outcomes[value] = call(value)
        except BaseException as error:
            outcomes[value] = error

    for value in OTHERS:
        threading.Thread(target=run, args=(value,), daemon=True).start()


@pytest.mark.parametrize("kind", [TimeLimit, Interrupted])
def test_a_publish_that_is_interrupted_at_any_moment_leaves_the_messages_of_the_others_whole(
    node: FakeNode, kind: type[BaseException]
) -> None:
    for number in itertools.count(1):
        [partition] = node.create("orders")
        outcomes: dict[bytes, object] = {}
        with Client(node.url) as client:
            publisher, lock = direct_publisher(client)
            started(lambda value, client=client: client.publish("orders", value), outcomes)
            eventually(lambda publisher=publisher: len(publisher._queue) == len(OTHERS))
            is_interrupted = interrupted_at(
                number, lambda client=client: client.publish("orders", b"own"), PUBLISHER, kind
            )
            lock.others_may.set()
            eventually(lambda outcomes=outcomes: len(outcomes) == len(OTHERS))
            client.publish("orders", b"last")
        moment = f"interrupted at moment {number}"
        assert all(isinstance(found, Published) for found in outcomes.values()), moment
        stored = Counter(partition.values())
        assert stored.pop(b"own", 0) in ((0, 1) if is_interrupted else (1,)), moment
        assert stored == dict.fromkeys([*OTHERS, b"last"], 1), moment
        assert not publisher._queue, moment
        if not is_interrupted:
            break
    assert number > 50


def test_what_is_published_after_an_interrupted_list_is_not_taken_for_a_part_of_it(
    node: FakeNode,
) -> None:
    values = [b"%d" % number for number in range(3)]
    for number in itertools.count(1):
        [partition] = node.create("orders")
        with Client(node.url) as client:
            client.publish("orders", b"first")
            is_interrupted = interrupted_at(
                number, lambda client=client: client.publish_many("orders", values), PUBLISHER
            )
            later = [client.publish("orders", value) for value in (b"later", b"last")]
        stored = Counter(partition.values())
        assert set(stored.values()) == {1}, f"interrupted at moment {number}"
        assert [partition.values()[found.id.offset] for found in later] == [b"later", b"last"]
        if not is_interrupted:
            assert set(values) < set(stored)
            break
    assert number > 30


def test_a_send_that_is_interrupted_at_any_moment_loses_and_doubles_nothing(node: FakeNode) -> None:
    for number in itertools.count(1):
        [partition] = node.create("orders")
        taken: list[bytes] = []
        with Client(node.url) as client:
            producer = client.producer("orders", batch=3, linger=NEVER)

            def send(producer=producer, taken=taken) -> None:
                for value in (b"00", b"01"):
                    producer.send(value)
                    taken.append(value)
                producer.send(b"02", key=b"k", headers={"h": "v"}, tenant="t")
                taken.append(b"02")
                producer.send_many([Message(b"03", b"k"), Message(b"04"), Message(b"05")])
                taken.extend([b"03", b"04", b"05"])
                producer.send_values([b"06", b"07"])
                taken.extend([b"06", b"07"])

            is_interrupted = interrupted_at(number, send, PRODUCER)
            moment = f"interrupted at moment {number}"
            assert is_done(lambda producer=producer: producer.send(b"08")), moment
            assert is_done(producer.flush), moment
            assert producer.unsent == 0, moment
            assert is_done(producer.close), moment
        stored = [bytes(value or b"") for value in partition.values()]
        assert stored == sorted(set(stored)), moment
        assert set(stored) >= {*taken, b"08"}, moment
        if not is_interrupted:
            break
    assert number > 100


def test_the_end_of_linger_sends_what_an_interrupted_send_has_begun(node: FakeNode) -> None:
    for number in itertools.count(1):
        [partition] = node.create("orders")
        with Client(node.url) as client:
            producer = client.producer("orders", linger="1ms")
            is_interrupted = interrupted_at(
                number, lambda producer=producer: producer.send(b"own"), PRODUCER
            )
            producer.send(b"next")
            eventually(lambda partition=partition: b"next" in partition.values())
            assert is_done(producer.close), f"interrupted at moment {number}"
        if not is_interrupted:
            break
    assert number > 20


@pytest.mark.parametrize("end", ["flush", "close"])
def test_an_end_that_is_interrupted_at_any_moment_can_be_called_again(
    node: FakeNode, end: str
) -> None:
    for number in itertools.count(1):
        [partition] = node.create("orders")
        with Client(node.url) as client:
            producer = client.producer("orders", linger=NEVER)
            producer.send(b"own")
            is_interrupted = interrupted_at(number, getattr(producer, end), PRODUCER)
            moment = f"interrupted at moment {number}"
            assert is_done(getattr(producer, end)), moment
            assert is_done(producer.close), moment
        assert partition.values() == [b"own"] * (1 - producer.unsent), moment
        if not is_interrupted:
            break
    assert number > 10
