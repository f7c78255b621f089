"""Dead letters: operators put them back again and again, and none is lost or doubled by that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from goq.broker.dlq.redrive import RemovalRequest, RemovalResult, redrive
from goq.broker.dlq.search import DeadLetterQuery
from goq.errors import GoqError
from goq.model import Message
from tests.sim.books import Books, name_of, sent_value
from tests.sim.clients import Clients
from tests.sim.cluster import DEAD_LETTERS, PARTITIONS, TOPIC, Cluster
from tests.sim.logs import messages_of
from tests.sim.process import Process
from tests.support.broker.partition_internals import state_of

_PAUSE_S = 0.7
_MESSAGES_MAX = 5
_CALM_MESSAGES_MAX = 100
"""At the end, when all must be redriven in time, however long the life was."""
_FROM = "goq-redriven-from"


class DeadLetters:
    """The dead letters of all partitions, and who redrives them."""

    def __init__(self, cluster: Cluster, books: Books, clients: Clients) -> None:
        self._cluster = cluster
        self._books = books
        self._clients = clients
        self._world = cluster.world
        self._random = cluster.world.stream("dead letters")
        self._redriven = 0
        """How many letters were told to be redriven."""

    async def keep_redriving(self) -> None:
        """Redrive some letters of one node after the other, for ever."""
        while True:
            names = list(self._cluster.processes)
            process = self._cluster.processes[self._random.choice(names)]
            try:
                result = await self._clients.ask(self._redrive, process)
            except GoqError:
                pass
            else:
                self._redriven += result.removed
            pace = 0.1 if self._clients.is_calm else self._world.pace
            await self._clients.pause(_PAUSE_S * pace)

    async def _redrive(self, process: Process) -> RemovalResult:
        broker = process.broker
        messages_max = _CALM_MESSAGES_MAX if self._clients.is_calm else _MESSAGES_MAX
        request = RemovalRequest(DeadLetterQuery(), (-1, -1), messages_max, force=True)
        dead, target = broker.topic(DEAD_LETTERS), broker.topic(TOPIC)
        result = await redrive(dead, target, process.machine.clock.wall_ms(), request)
        if result.removed:
            self._world.note(f"{process.name} redrives {result.removed} dead letters")
        return result

    def are_redriven(self) -> bool:
        """Whether no letter is left, and all copies are where they belong."""
        for number in range(PARTITIONS):
            leader = self._cluster.leader_of(number, DEAD_LETTERS)
            topic = None if leader is None else leader.broker.topics.get(DEAD_LETTERS)
            partition = None if topic is None else topic.partitions.get(number)
            if partition is None or state_of(partition).outbox.entries:
                return False
            offsets = range(partition.start_offset, partition.end_offset)
            if not all(map(partition.marks.is_cancelled, offsets)):
                return False
        return True

    def check(self) -> set[bytes]:
        """Check the logs of a life at whose end all letters were redriven.

        What died has one letter, what was acked none, and each letter has one copy. Return the
        messages that have a letter.
        """
        fail = self._world.fail
        letters = {
            f"{DEAD_LETTERS}:{number}:{offset}": name_of(letter)
            for number in range(PARTITIONS)
            for offset, letter in enumerate(self._longest(number, DEAD_LETTERS))
        }
        for name, count in Counter(letters.values()).items():
            if count > 1:
                fail(f"{name!r} has {count} dead letters")
            if name in self._books.acked_s:
                fail(f"{name!r} was acked, and is a dead letter")
        for name in self._books.rejected_s.keys() - set(letters.values()):
            fail(f"{name!r} was rejected, and has no dead letter")
        copies = Counter[str]()
        for number in range(PARTITIONS):
            for message in self._longest(number, TOPIC):
                if origin := dict(message.headers).get(_FROM, b"").decode():
                    copies[origin] += 1
                    letter = letters.get(origin, b"")
                    if sent_value(name_of(message)) != sent_value(letter):
                        fail(f"{name_of(message)!r} is a copy of {origin}, which is {letter!r}")
        for letter_id, name in letters.items():
            if copies[letter_id] != 1:
                fail(f"{letter_id}, {name!r}, was redriven, and has {copies[letter_id]} copies")
        if self._redriven > copies.total():
            fail(f"{self._redriven} letters were redriven, and there are {copies.total()} copies")
        self._world.counts["dead letters"] += len(letters)
        return set(letters.values())

    def _longest(self, number: int, topic: str) -> list[Message]:
        """Return the messages of a partition on the node that has most of them."""
        machines = self._cluster.machines.values()
        found: Iterator[list[Message]] = (list(messages_of(m, number, topic)) for m in machines)
        return max(found, key=len)
