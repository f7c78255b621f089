"""Crash states: what of the changes that are not durable at a moment a power cut leaves.

A :class:`Loss` decides about each change from a seed. The states of a volume are drawn from the
moments at which most can go wrong: before and after answers, syncs and changes of names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.support.storage.power.volume import DataChange, NameChange, Tree, Volume, grow, write

SECTORS = (512, 4096)


@dataclass(slots=True)
class Loss:
    """What one power cut takes; ``chance`` is its own."""

    chance: random.Random
    sector_bytes: int
    last_index: int
    """The change that was last of all that are not durable."""

    def keeps(self, change: NameChange) -> bool:
        """Return whether a change of names is there."""
        raise NotImplementedError

    def writes(self, change: DataChange, content: bytearray) -> None:
        """Carry out what is there of a change of bytes."""
        raise NotImplementedError

    def _write_torn(self, change: DataChange, content: bytearray) -> None:
        """Write some sectors; the file may or may not have grown by the others."""
        if change.data is None:
            return
        end = change.position + len(change.data)
        if self.chance.random() < 0.5:
            grow(content, end)
        at = change.position
        while at < end:
            after = min(end, (at // self.sector_bytes + 1) * self.sector_bytes)
            if self.chance.random() < 0.5:
                grow(content, after)
                content[at:after] = change.data[at - change.position : after - change.position]
            at = after


class Nothing(Loss):
    """Everything that is not durable is lost."""

    def keeps(self, change: NameChange) -> bool:
        return False

    def writes(self, change: DataChange, content: bytearray) -> None:
        return


class Everything(Loss):
    """All is there: the process was killed, the machine was not."""

    def keeps(self, change: NameChange) -> bool:
        return True

    def writes(self, change: DataChange, content: bytearray) -> None:
        write(change, content)


class LostNames(Everything):
    """All bytes are there, and no name that is not durable."""

    def keeps(self, change: NameChange) -> bool:
        return False


class LostBytes(Everything):
    """All names are there, and no byte that is not durable."""

    def writes(self, change: DataChange, content: bytearray) -> None:
        return


class Zeros(Everything):
    """Files have their new sizes; what is not durable in them is zeros."""

    def writes(self, change: DataChange, content: bytearray) -> None:
        if change.data is None:
            write(change, content)
        else:
            grow(content, change.position + len(change.data))


class Leftovers(Everything):
    """Files have their new sizes; what is not durable in them is what the disk held there."""

    def writes(self, change: DataChange, content: bytearray) -> None:
        if change.data is None:
            write(change, content)
            return
        missing = change.position + len(change.data) - len(content)
        if missing > 0:
            content += self.chance.randbytes(missing)


class Torn(Everything):
    """Of each write some sectors are there."""

    def writes(self, change: DataChange, content: bytearray) -> None:
        self._write_torn(change, content)


class Prefix(Loss):
    """The changes up to one of them are there, the next one in part."""

    def keeps(self, change: NameChange) -> bool:
        return change.index < self._cut

    def writes(self, change: DataChange, content: bytearray) -> None:
        if change.index < self._cut:
            write(change, content)
        elif change.index == self._cut:
            self._write_torn(change, content)

    @property
    def _cut(self) -> int:
        return self.last_index


class Suffix(Prefix):
    """The changes from one of them on are there, and none before."""

    def keeps(self, change: NameChange) -> bool:
        return change.index >= self._cut

    def writes(self, change: DataChange, content: bytearray) -> None:
        if change.index >= self._cut:
            write(change, content)


class Reordered(Loss):
    """Each change is there or not, whatever came before it."""

    def keeps(self, change: NameChange) -> bool:
        return self.chance.random() < 0.5

    def writes(self, change: DataChange, content: bytearray) -> None:
        outcome = self.chance.random()
        if outcome < 0.4:
            write(change, content)
        elif outcome < 0.6:
            self._write_torn(change, content)


LOSSES: tuple[type[Loss], ...] = (
    Nothing,
    Reordered,
    LostNames,
    Torn,
    Prefix,
    LostBytes,
    Suffix,
    Zeros,
    Everything,
    Leftovers,
)


@dataclass(frozen=True, slots=True)
class CrashState:
    """A folder after a power cut before entry ``point``."""

    point: int
    loss: str
    seed: int
    tree: Tree

    def __str__(self) -> str:
        return f"{self.loss} at {self.point}, seed {self.seed}"


def crash_state(volume: Volume, point: int, loss: type[Loss], seed: int) -> CrashState:
    """Return what a power cut leaves."""
    chance = random.Random(f"{seed} {point} {loss.__name__}")
    indices = sorted(change.index for change in volume.unsynced(point))
    cut = chance.choice(indices) if indices else point
    lost = loss(chance, chance.choice(SECTORS), cut)
    return CrashState(point, loss.__name__, seed, volume.tree(point, lost.keeps, lost.writes))


def crash_states(
    volume: Volume,
    seed: int,
    count: int,
    *,
    losses: Sequence[type[Loss]] = LOSSES,
    first: int = 0,
) -> Iterator[CrashState]:
    """Yield ``count`` states, spread over the record from entry ``first`` on.

    The record is cut into equal stretches. Each gives one moment: one of each kind in turn, so
    that every loss meets every kind.
    """
    chance = random.Random(seed)
    for number in range(count):
        begin = first + (volume.size - first) * number // count
        end = first + (volume.size - first) * (number + 1) // count
        moment = MOMENTS[(number // len(losses)) % len(MOMENTS)]
        points = moment(volume, begin, end) or range(begin, end + 1)
        yield crash_state(volume, chance.choice(points), losses[number % len(losses)], seed)


Moments = Callable[[Volume, int, int], Sequence[int]]


def after_answers(volume: Volume, begin: int, end: int) -> Sequence[int]:
    return [i + 1 for i in range(begin, end) if volume.entries[i].kind == "N"]


def after_names(volume: Volume, begin: int, end: int) -> Sequence[int]:
    return [i + 1 for i in range(begin, end) if volume.entries[i].kind in "CDRLU"]


def before_syncs(volume: Volume, begin: int, end: int) -> Sequence[int]:
    return [i for i in range(begin, end) if volume.entries[i].kind == "S"]


def anywhere(_volume: Volume, begin: int, end: int) -> Sequence[int]:
    return range(begin, end + 1)


MOMENTS: tuple[Moments, ...] = (after_answers, after_names, before_syncs, anywhere)
