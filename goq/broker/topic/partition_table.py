"""The partitions of a topic: their number, and the open ones on this node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from goq.errors import GoqError, NotLeader, PartitionNotFound

if TYPE_CHECKING:
    from goq.broker.partition.partition import Partition


_is_online = attrgetter("is_online")
_is_sound = attrgetter("is_sound")


class PartitionTable:
    """The partitions of one topic. Iteration yields the partitions open on this node, by number.

    A standalone node has all partitions open but those that are ``offline``.
    """

    def __init__(self, topic: str) -> None:
        self.count = 0
        """The number of partitions of the topic, over all nodes."""
        self.offline: dict[int, GoqError] = {}
        """Why partitions could not be opened on this node, by number."""
        self.change_count = 0
        """Grows when partitions come or go."""
        self.topic = topic
        """The name of the topic."""
        self._changed_at: dict[int, int] = {}  # the latest change of each partition, in order
        self._here: dict[int, Partition] = {}
        self._closed: GoqError | None = None

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.here())

    def __getitem__(self, number: int) -> Partition:
        try:
            return self._here[number]
        except KeyError:
            raise self.not_here(number) from None

    def changed_since(self, change_count: int) -> Iterator[int]:
        """Yield the partitions that came or went after a value of ``change_count``."""
        for number, changed_at in reversed(self._changed_at.items()):
            if changed_at <= change_count:
                break
            yield number

    def _note_change(self, numbers: Iterable[int]) -> None:
        self.change_count += 1
        for number in numbers:
            self._changed_at.pop(number, None)
            self._changed_at[number] = self.change_count

    def numbers(self) -> Collection[int]:
        """Return the numbers of the partitions open on this node."""
        return self._here.keys()

    def here(self) -> Sequence[Partition]:
        """Return the partitions open on this node, by number."""
        return list(self._here.values())

    def get(self, number: int) -> Partition | None:
        """Return a partition, or None if it is not open on this node."""
        return self._here.get(number)

    def held(self) -> Mapping[int, object]:
        """Return the partitions that this node has, open or offline, by number.

        A partition that is closed and opened again is another object.
        """
        return {**self.offline, **self._here}

    def held_count(self) -> int:
        """Return the number of partitions that this node has, open or offline, and no other."""
        return len(self._here) + len(self.offline)

    def in_turn(self, first: int) -> list[Partition]:
        """Return the partitions open on this node in cyclic order from number ``first`` on."""
        here = list(self._here.values())
        split = next((n for n, p in enumerate(here) if p.identity.number >= first), 0)
        return here[split:] + here[:split]

    def put(self, *partitions: Partition) -> None:
        """Add partitions all at once, or replace those with their numbers."""
        self._note_change(partition.identity.number for partition in partitions)
        known = len(self._here)
        for partition in partitions:
            number = partition.identity.number
            self.count = max(self.count, number + 1)
            self.offline.pop(number, None)
            self._here[number] = partition
        if len(self._here) > known:
            self._here = dict(sorted(self._here.items()))

    def put_offline(self, number: int, error: GoqError) -> None:
        """Add a partition that could not be opened."""
        self._note_change([number])
        self.count = max(self.count, number + 1)
        self.offline[number] = error

    def take(self, number: int) -> Partition:
        """Remove and return a partition; raise as ``[number]`` does."""
        partition = self[number]
        self._note_change([number])
        del self._here[number]
        return partition

    def close(self, reason: GoqError) -> None:
        """Forget the partitions, which are closed; later calls raise ``reason``."""
        self._note_change(self._here)
        self._here = {}
        self._closed = reason

    def check(self, number: int) -> None:
        """Raise ``PartitionNotFound`` unless the topic has this partition on some node."""
        if not 0 <= number < self.count:
            raise PartitionNotFound(
                f"topic {self.topic} has partitions 0 to {self.count - 1}, not {number}",
                field="partition",
            )

    def check_all_open(self) -> None:
        """Raise ``PartitionOffline`` if a partition could not be opened on this node."""
        for error in self.offline.values():
            raise error

    @property
    def are_sound(self) -> bool:
        """Whether all partitions of this node are usable, without damage that is known."""
        return not self.offline and all(map(_is_sound, self._here.values()))

    def failures(self) -> dict[int, GoqError]:
        """Return why partitions of this node are offline, by number."""
        if not self.offline and all(map(_is_online, self._here.values())):
            return {}
        opened = {number: each.availability.error for number, each in self._here.items()}
        failed = {number: error for number, error in opened.items() if error is not None}
        return dict(sorted({**failed, **self.offline}.items()))

    def check_any_online(self) -> None:
        """Raise ``PartitionOffline`` if all partitions of the topic are offline on this node."""
        failures = self.failures()
        if failures and len(failures) == self.count:
            raise next(iter(failures.values()))

    def not_here(self, number: int) -> GoqError:
        """Return the error for a partition not open on this node; raise as :meth:`check` does."""
        self.check(number)
        if self._closed is not None:
            return self._closed
        if number in self.offline:
            return self.offline[number]
        return NotLeader(f"this node does not lead partition {number} of {self.topic}")
