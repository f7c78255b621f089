"""Load on a cluster whose leaders change, and a check of every answer against the logs.

An answer is one of three: *stored*, *refused* (any problem but 504), or *unknown* (504, or no whole
answer). In the end a refused value is not in the log, and a stored one is there exactly once. A
receipt that only ever failed belongs to a message that is not done.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.frame.encoder import Columns, ProducerMark, encode_frame

Addresses = Callable[[], Sequence[tuple[str, int]]]
TIMEOUT_S = 30.0
GROUP = "workers"
VISIBILITY_S = 2


class Outcome(Enum):
    """What an answer says of a write."""

    STORED = "stored"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Attempt(NamedTuple):
    """One answered or broken request; ``code`` is that of its problem."""

    outcome: Outcome
    code: str
    body: Any


class _Sender:
    """Sends requests of one thread over connections that stay open, one for each node."""

    def __init__(self) -> None:
        self._connections: dict[tuple[str, int], http.client.HTTPConnection] = {}

    def send(
        self, address: tuple[str, int], method: str, path: str, body: object, kind: str = ""
    ) -> Attempt:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": kind or "application/json"}
        connection = self._connections.get(address)
        if connection is None:
            connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
            try:
                connection.connect()
            except OSError:
                return Attempt(Outcome.REFUSED, "cannot connect", None)
            self._connections[address] = connection
        try:
            connection.request(method, path, sent, headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            del self._connections[address]
            return Attempt(Outcome.UNKNOWN, "broken", None)
        if response.will_close:
            connection.close()
            del self._connections[address]
        found = json.loads(text) if text else None
        if response.status < 300:
            return Attempt(Outcome.STORED, "", found)
        outcome = Outcome.UNKNOWN if response.status == 504 else Outcome.REFUSED
        return Attempt(outcome, found["code"], found)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class Load:
    """Publishers and consumers of one topic, and their answers."""

    def __init__(self, topic: str, partitions: int, addresses: Addresses) -> None:
        self.published: dict[str, list[Outcome]] = {}
        """The outcomes of the attempts to publish a value."""
        self.codes: Counter[str] = Counter()
        """How many answers had each code."""
        self.settled: defaultdict[str, list[tuple[int, Outcome]]] = defaultdict(list)
        """The outcomes of settlements by message id; each with the time of its receive."""
        self.received: defaultdict[str, list[int]] = defaultdict(list)
        """The times of the receives of a message."""
        self._topic = topic
        self._partitions = partitions
        self._addresses = addresses
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._clock = 0

    @contextmanager
    def running(self, *, publishers: int, producers: int, consumers: int) -> Iterator[None]:
        """Keep the load on until the block ends."""
        work = [self._publish] * publishers + [self._produce] * producers
        work += [self._consume] * consumers
        threads = [
            threading.Thread(target=self._run, args=(number, each))
            for number, each in enumerate(work)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert not self._errors, self._errors

    def _run(self, number: int, work: Callable[[int, random.Random, _Sender], None]) -> None:
        sender = _Sender()
        try:
            work(number, random.Random(number), sender)
        except BaseException as error:
            self._errors.append(error)
        finally:
            sender.close()

    def _tick(self) -> int:
        with self._lock:
            self._clock += 1
            return self._clock

    def _note(self, values: Sequence[str], attempt: Attempt) -> None:
        with self._lock:
            self.codes[attempt.code or "stored"] += 1
            for value in values:
                self.published.setdefault(value, []).append(attempt.outcome)

    def _publish(self, number: int, draw: random.Random, sender: _Sender) -> None:
        """Publish messages without numbers: a request is never sent again."""
        path = f"/v1/topics/{self._topic}/messages"
        count = 0
        while not self._stop.is_set():
            values = [f"p{number}-{count + at}" for at in range(draw.choice((1, 1, 3)))]
            count += len(values)
            messages = [
                {"value": value, "partition": draw.randrange(self._partitions)} for value in values
            ]
            address = draw.choice(self._addresses())
            self._note(values, sender.send(address, "POST", path, {"messages": messages}))

    def _produce(self, number: int, draw: random.Random, sender: _Sender) -> None:
        """Publish numbered batches; each is sent again until it is stored."""
        path = f"/v1/topics/{self._topic}/messages"
        partition, sequence = draw.randrange(self._partitions), 0
        while not self._stop.is_set():
            values = [f"n{number}-{sequence}", f"n{number}-{sequence + 1}"]
            mark = ProducerMark(number + 1, 0, sequence)
            frame = encode_frame(Columns([value.encode() for value in values]), producer=mark)
            body = b"".join(wire.place(partition, frame))
            while True:
                address = draw.choice(self._addresses())
                attempt = sender.send(address, "POST", path, body, routes.FRAMES.decode())
                if attempt.outcome is Outcome.STORED or self._stop.is_set():
                    break
                with self._lock:
                    self.codes[attempt.code] += 1
                assert attempt.code not in ("out_of_order_sequence", "producer_fenced"), attempt
            if attempt.outcome is not Outcome.STORED:
                break  # earlier attempts of the batch may be in the log
            self._note(values, attempt)
            sequence += len(values)

    def _consume(self, number: int, draw: random.Random, sender: _Sender) -> None:
        while not self._stop.is_set():
            self._consume_once(draw.choice(self._addresses()), draw, sender)

    def _consume_once(
        self, address: tuple[str, int], draw: random.Random, sender: _Sender
    ) -> int | None:
        """Receive and acknowledge once; return how many came, None after a failure."""
        path = f"/v1/topics/{self._topic}/groups/{GROUP}"
        asked = {"max_messages": draw.choice((1, 5, 20)), "visibility": VISIBILITY_S, "wait": "0.1"}
        began = self._tick()
        answer = sender.send(address, "POST", f"{path}/receive", asked)
        if answer.outcome is not Outcome.STORED:
            return None
        ids = {m["receipt"]: m["id"] for m in answer.body["messages"]}
        with self._lock:
            for message in ids.values():
                self.received[message].append(began)
        if not ids:
            return 0
        attempt = sender.send(
            draw.choice(self._addresses()), "POST", f"{path}/ack", {"receipts": list(ids)}
        )
        failed: dict[str, str] = {}
        if attempt.outcome is Outcome.STORED:
            failed = {each["receipt"]: each["code"] for each in attempt.body["failed"]}
        with self._lock:
            self.codes[f"ack: {attempt.code or 'answered'}"] += 1
            self.codes.update(f"receipt: {code}" for code in failed.values())
            for receipt, message in ids.items():
                outcome = attempt.outcome
                if receipt in failed:
                    unknown = failed[receipt] == "timed_out"
                    outcome = Outcome.UNKNOWN if unknown else Outcome.REFUSED
                self.settled[message].append((self._clock, outcome))
        return len(ids)

    def check_log(self, values: Sequence[str]) -> None:
        """Check all publishes against the values that the logs hold in the end."""
        found = Counter(values)
        stored = [v for v, outcomes in self.published.items() if Outcome.STORED in outcomes]
        refused = [
            v for v, outcomes in self.published.items() if set(outcomes) == {Outcome.REFUSED}
        ]
        there = [value for value in refused if found[value]]
        assert not there, f"{len(there)} of {len(refused)} refused are stored: {there[:5]}"
        wrong = {value: found[value] for value in stored if found[value] != 1}
        assert not wrong, f"{len(wrong)} of {len(stored)} stored are not there once: {wrong}"
        twice = [value for value, count in found.items() if count > 1]
        assert not twice, f"stored twice: {twice[:5]}"

    def drain(self) -> None:
        """Receive and acknowledge until nothing came for longer than a lease lasts."""
        sender, draw = _Sender(), random.Random(0)
        empty, pause = 0, threading.Event()
        try:
            while empty < 10 * (VISIBILITY_S + 2):
                came = self._consume_once(self._addresses()[0], draw, sender)
                empty = 0 if came else empty + (came == 0)
                if not came:
                    pause.wait(0.02)
        finally:
            sender.close()

    def check_settlements(self, ids: Sequence[str]) -> None:
        """Check all settlements; call it after :meth:`drain` with the ids of all messages."""
        done_unsaid = [
            message
            for message in ids
            if all(outcome is Outcome.REFUSED for _, outcome in self.settled[message])
            and self.settled[message]
        ]
        assert not done_unsaid, f"all settlements refused, but done: {done_unsaid[:5]}"
        for message, outcomes in self.settled.items():
            done = [time for time, outcome in outcomes if outcome is Outcome.STORED]
            back = [time for time in self.received[message] if done and time > done[0]]
            assert not back, f"{message} came back after it was settled"
