"""Producers and consumers that work on a node at once, whatever happens to it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import goq
from goq.client import Client, Producer, ReceivedMessage
from goq.errors import GoqError
from tests.support.eventually import eventually
from tests.support.ledger.ledger import (
    GroupConsumer,
    Ledger,
    Marker,
    Place,
    ProducerRecord,
    dead_places,
    is_drained,
    read_log,
)

TOPIC = "work"
GROUP = "workers"
SENT_BY_EACH_MAX = 1500
_KEYS = [b"key-%d" % number for number in range(23)]
_TENANTS = (None, "one", "two")
_SETTINGS = {"delivery.max_attempts": "none", "priority.weights": "4,2,1"}


class Load:
    """Threads of producers and consumers; everything they see is in ``ledger``.

    All clients lose patience sooner than a node wakes that stands still. Half of them send failed
    requests again by themselves. The others do not, so that each of their requests is one attempt
    and a refusal is a refusal. What is left in the end is drained by clients that wait: on a
    starved machine a large receive outlasts the patience of the others each time.
    """

    def __init__(self, url: str | Sequence[str], seed: int, partitions: int) -> None:
        self.ledger = Ledger()
        self.partitions = partitions
        self._url = url
        self._seed = seed
        self._resources = ExitStack()
        self._publishing_over = threading.Event()
        self._draining = threading.Event()
        self._consuming_over = threading.Event()
        self._errors: list[BaseException] = []
        self._producers: list[threading.Thread] = []
        self._consumers: list[threading.Thread] = []

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Make the topic, run all threads; end them when the ``with`` is left."""
        with self._resources:
            self._client("20s", "20s").create_topic(TOPIC, self.partitions, _SETTINGS)
            patient, hasty = self._client("1s", retries="20s"), self._client("700ms", retries=0)
            try:
                self._produce("batches", lambda r, x: _send_batches(r, x, patient, self._stop))
                self._produce("hasty-batches", lambda r, x: _send_batches(r, x, hasty, self._stop))
                self._produce("singles", lambda r, x: _publish(r, x, patient, self._stop))
                self._produce("more-singles", lambda r, x: _publish(r, x, patient, self._stop))
                self._produce("hasty-singles", lambda r, x: _publish(r, x, hasty, self._stop))
                self._mark(hasty)
                self._consume("patient", patient, repeats=True)
                self._consume("hasty", hasty, repeats=False)
                self._consume("hastier", hasty, repeats=False)
                yield self
            finally:
                self._publishing_over.set()
                self._consuming_over.set()
                for thread in (*self._producers, *self._consumers):
                    thread.join()
        self._raise_errors()

    def wait_for_progress(self, count: int) -> None:
        """Return when so many more messages are stored, and so many more are acked."""
        ledger = self.ledger
        stored, acked = ledger.stored_count + count, ledger.acked_count + count
        eventually(
            lambda: self._errors or (ledger.stored_count >= stored and ledger.acked_count >= acked),
            f"{count} more messages stored and acked; {ledger.summary()}",
        )

    def finish_and_check(self) -> None:
        """Publish no more, let the consumers finish what there is, then check the ledger.

        Raises the error of a thread instead: what that did last, the ledger does not have.
        """
        self._publishing_over.set()
        for thread in self._producers:
            thread.join()
        self._raise_errors()
        self._draining.set()
        client = self._client("20s", retries="20s")
        try:
            eventually(
                lambda: self._errors or is_drained(client, TOPIC, GROUP), "everything is acked"
            )
        except AssertionError as error:
            error.add_note(f"left are {client.describe_group(TOPIC, GROUP).raw}")
            raise
        self._consuming_over.set()
        for thread in self._consumers:
            thread.join()
        self._raise_errors()
        log = read_log(client, TOPIC)
        dead: list[Place] = []
        given_up = self.ledger.given_up

        def is_dead() -> bool:
            dead[:] = dead_places(client, TOPIC)
            return given_up <= set(dead)

        try:
            eventually(is_dead, "what was given up is dead")
        except AssertionError as error:
            for partition, offset in sorted(given_up - set(dead))[:3]:
                trace = client.get_trace(goq.MessageId(TOPIC, partition, offset)).raw
                error.add_note(f"not dead: {trace}")
            raise
        self.ledger.check(log, self.partitions, client.describe_group(TOPIC, GROUP).raw, dead)

    def _raise_errors(self) -> None:
        for error in self._errors:
            raise error

    def _client(self, timeout: str, retries: str | float) -> Client:
        client = Client(self._url, timeout=timeout, retries=retries)
        return self._resources.enter_context(client)

    def _stop(self, pause_s: float) -> bool:
        return self._publishing_over.wait(pause_s)

    def _produce(self, name: str, work: Callable[[ProducerRecord, random.Random], None]) -> None:
        record = self.ledger.producer(name)
        chance = random.Random(f"{self._seed} {name}")
        self._producers.append(self._thread(lambda: work(record, chance)))

    def _mark(self, client: Client) -> None:
        """Cancel, move and reschedule some of what was published, as long as that goes on."""
        marker = Marker(self.ledger, client)
        chance = random.Random(f"{self._seed} marks")
        self._producers.append(self._thread(lambda: _mark(marker, chance, self._stop)))

    def _consume(self, name: str, client: Client, *, repeats: bool) -> None:
        chance = random.Random(f"{self._seed} {name}")
        consumer = self.ledger.consumer(client, name, TOPIC, GROUP, repeats=repeats)
        waits = self._client("20s", retries=0)
        drainer = self.ledger.consumer(waits, name, TOPIC, GROUP, repeats=False)

        def work() -> None:
            self._work_off(consumer, chance)
            self._drain(drainer)

        self._consumers.append(self._thread(work))

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def _work_off(self, consumer: GroupConsumer, chance: random.Random) -> None:
        """Settle messages in all ways until no more are published."""
        while not (self._draining.is_set() or self._consuming_over.is_set()):
            try:
                messages = consumer.receive(
                    max=chance.randint(1, 80),
                    wait_s=chance.randint(0, 150) / 1000,
                    visibility_s=chance.randint(300, 900) / 1000,
                )
                self._settle(consumer, messages, chance)
            except GoqError:
                self._consuming_over.wait(0.02)

    def _drain(self, consumer: GroupConsumer) -> None:
        """Acknowledge what is left."""
        while not self._consuming_over.is_set():
            try:
                if messages := consumer.receive(max=1000, wait_s=0.1, visibility_s=_DRAINED_S):
                    consumer.ack(messages)
            except GoqError:
                self._consuming_over.wait(0.02)

    def _settle(
        self, consumer: GroupConsumer, messages: list[ReceivedMessage], chance: random.Random
    ) -> None:
        """Do with messages what consumers do: some in order, some not, some twice, some never."""
        if chance.random() < 0.3:
            chance.shuffle(messages)
        while messages:
            count = chance.choice((1, 1, 5, 20, len(messages)))
            some, messages = messages[:count], messages[count:]
            action = chance.choices(_ACTIONS, _WEIGHTS)[0]
            action(consumer, some, chance, self._draining)


def _ack(
    consumer: GroupConsumer, some: Sequence[ReceivedMessage], _: random.Random, _d: threading.Event
) -> None:
    consumer.ack(some)


def _ack_twice(
    consumer: GroupConsumer, some: Sequence[ReceivedMessage], _: random.Random, _d: threading.Event
) -> None:
    consumer.ack(some)
    consumer.ack(some)


def _nack(
    consumer: GroupConsumer,
    some: Sequence[ReceivedMessage],
    chance: random.Random,
    _d: threading.Event,
) -> None:
    consumer.nack(some, delay_s=chance.choice((0, 0, 30, 200)) / 1000)


def _extend_then_ack(
    consumer: GroupConsumer,
    some: Sequence[ReceivedMessage],
    chance: random.Random,
    draining: threading.Event,
) -> None:
    consumer.extend(some, visibility_s=chance.randint(100, 900) / 1000)
    draining.wait(chance.choice((0, 0, 0.1)))
    consumer.ack(some)


def _ack_too_late(
    consumer: GroupConsumer,
    some: Sequence[ReceivedMessage],
    _: random.Random,
    draining: threading.Event,
) -> None:
    consumer.extend(some, visibility_s=0.02)
    draining.wait(0.06)
    consumer.ack(some)


def _forget(
    _c: GroupConsumer, _s: Sequence[ReceivedMessage], _: random.Random, _d: threading.Event
) -> None:
    pass


def _reject(
    consumer: GroupConsumer, some: Sequence[ReceivedMessage], _: random.Random, _d: threading.Event
) -> None:
    consumer.reject(some[:3])
    consumer.ack(some[3:])


_DRAINED_S = 10.0
"""Leases of a whole drain: shorter ones end before a starved machine has acknowledged 1,000."""
_ACTIONS = (_ack, _ack_twice, _nack, _extend_then_ack, _ack_too_late, _forget, _reject)
_WEIGHTS = (66, 5, 10, 8, 3, 4, 4)


class _Wish(NamedTuple):
    """A message to send: what it is, and what is said of its delivery."""

    value: bytes
    key: bytes | None
    said: dict[str, Any]

    def written(self, record: ProducerRecord) -> Any:
        """Write it down before it is handed to the client."""
        return record.sending(
            self.value,
            self.key,
            lane=self.said.get("priority"),
            tenant=self.said.get("tenant"),
            due_us=self.said.get("deliver_at", 0) * 1000,
        )


def _messages(
    record: ProducerRecord, chance: random.Random, stop: Callable[[float], bool]
) -> Iterator[_Wish]:
    """Yield values that nobody else sends, and keys for half of them, at an uneven pace.

    A key is always of one tenant; most messages say nothing of lanes, tenants and times.
    """
    for number in range(SENT_BY_EACH_MAX):
        size = chance.choice((0, 10, 100, 100, 1000)) if number % 200 else 100_000
        value = f"{record.name}-{number}-".encode() + chance.randbytes(size)
        key = chance.choice(_KEYS) if chance.random() < 0.5 else None
        said: dict[str, Any] = {}
        if key is not None and (tenant := _TENANTS[_KEYS.index(key) % len(_TENANTS)]):
            said["tenant"] = tenant
        if chance.random() < 0.3:
            said["priority"] = chance.choice(("high", "low"))
        if chance.random() < 0.15:
            said["deliver_at"] = time.time_ns() // 1_000_000 + chance.randint(1, 900)
        yield _Wish(value, key, said)
        if stop(chance.choice((0, 0, 0, 0.001, 0.003))):
            return


def _publish(
    record: ProducerRecord, chance: random.Random, client: Client, stop: Callable[[float], bool]
) -> None:
    for wish in _messages(record, chance, stop):
        sent = wish.written(record)
        try:
            record.stored(sent, client.publish(TOPIC, wish.value, key=wish.key, **wish.said))
        except GoqError:
            record.unknown(sent)
            stop(0.02)


def _mark(marker: Marker, chance: random.Random, stop: Callable[[float], bool]) -> None:
    marked: set[object] = set()
    while not stop(0.01):
        sent = marker.some_stored(chance)
        if sent is None or sent.published.id in marked:
            continue
        marked.add(sent.published.id)
        kind = chance.randrange(3)
        if kind == 0:
            marker.cancel(sent.published.id)
        elif kind == 1:
            marker.move(sent.published.id, chance.choice(("high", "normal", "low")))
        elif sent.due_us:
            at_ms = time.time_ns() // 1_000_000 + chance.randint(1, 900)
            marker.reschedule(sent.published.id, at_ms)


def _send_batches(
    record: ProducerRecord, chance: random.Random, client: Client, stop: Callable[[float], bool]
) -> None:
    producer = client.producer(
        TOPIC, batch=chance.randint(2, 100), on_published=record.batch_stored
    )
    for wish in _messages(record, chance, stop):
        while not _taken(producer, record, wish):
            if stop(0.02):
                break
    eventually(lambda: _is_flushed(producer), "the producer has sent everything")
    producer.close()


def _taken(producer: Producer, record: ProducerRecord, wish: _Wish) -> bool:
    sent = wish.written(record)
    try:
        producer.send(wish.value, key=wish.key, **wish.said)
    except GoqError:
        record.withdrawn(sent)
        return False
    return True


def _is_flushed(producer: Producer) -> bool:
    try:
        producer.flush()
    except GoqError:
        return False
    return True
