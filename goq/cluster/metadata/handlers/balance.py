"""Making replicas and leaders even: from the node with more to the one with less, by few moves.

``rows`` are the replicas of partitions, in preferred order, and are changed in place, as are the
counts. There are several counts, the more important first: nodes are even when no node has two more
than another by the first count, and among those that differ by one, by the second, and so on.

Where a node cannot give to another straight, because of racks or because the other has a replica
already, it gives to a third that can: the shortest such way is taken (as an augmenting path of a
matching). Each step makes the sum of the squares of a count less and of no more important one
greater, so there is an end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

ReplicaRows = list[list[str]]
Counts = Sequence[Counter[str]]


def balance_replicas(
    rows: ReplicaRows,
    nodes: Sequence[str],
    racks: Mapping[str, str],
    counts: Counts,
    topics: Sequence[str] | None = None,
    steps_max: int = 1_000_000,
) -> None:
    """Make replicas even over ``nodes``; a partition's are never over fewer racks than before.

    Of the partitions that could go the first goes; or, with the topic of each row in ``topics``,
    one of which the giver has the most more than the taker.
    """
    of_topic: dict[str, Counter[str]] = {}
    for topic, row in zip(topics or (), rows, strict=False):
        of_topic.setdefault(topic, Counter()).update(row)
    held: dict[str, set[int]] = {node: set() for node in nodes}
    for number, row in enumerate(rows):
        for node in row:
            if node in held:
                held[node].add(number)

    def movable(giver: str, taker: str) -> Iterator[int]:
        for number in held[giver]:
            if number not in held[taker] and _keeps_racks(rows[number], giver, taker, racks):
                yield number

    def chosen(giver: str, taker: str) -> int:
        if topics is None:
            return min(movable(giver, taker))
        return min(
            movable(giver, taker),
            key=lambda number: (_surplus(of_topic[topics[number]], taker, giver), number),
        )

    def shift(number: int, giver: str, taker: str) -> None:
        rows[number][rows[number].index(giver)] = taker
        held[giver].remove(number)
        held[taker].add(number)
        if topics is not None:
            of_topic[topics[number]][giver] -= 1
            of_topic[topics[number]][taker] += 1

    _level(nodes, counts, _Rules(movable, chosen, shift), steps_max)


def balance_leaders(
    rows: ReplicaRows, nodes: Sequence[str], counts: Counts, steps_max: int = 1_000_000
) -> None:
    """Make preferred leaderships even over ``nodes`` by changing the order of replicas."""
    led: dict[str, set[int]] = {node: set() for node in nodes}
    for number, row in enumerate(rows):
        if row[0] in led:
            led[row[0]].add(number)

    def movable(giver: str, taker: str) -> Iterator[int]:
        return (number for number in led[giver] if taker in rows[number])

    def chosen(giver: str, taker: str) -> int:
        return min(movable(giver, taker))

    def shift(number: int, giver: str, taker: str) -> None:
        rows[number].remove(taker)
        rows[number].insert(0, taker)
        led[giver].remove(number)
        led[taker].add(number)

    _level(nodes, counts, _Rules(movable, chosen, shift), steps_max)


def _surplus(counts: Counter[str], giver: str, taker: str) -> int:
    return counts[giver] - counts[taker]


def _keeps_racks(row: Sequence[str], giver: str, taker: str, racks: Mapping[str, str]) -> bool:
    """Whether the racks are as many when ``taker`` has what ``giver`` had."""
    rack, given = racks[taker], racks[giver]
    if rack == given:
        return True
    is_new, given_stays = True, False
    for node in row:
        if node != giver:
            is_new = is_new and racks[node] != rack
            given_stays = given_stays or racks[node] == given
    return is_new or given_stays


class _Rules(NamedTuple):
    """Which rows a node can give to another, the one that it gives, and giving it."""

    movable: Callable[[str, str], Iterator[int]]
    chosen: Callable[[str, str], int]
    shift: Callable[[int, str, str], None]


def _level(nodes: Sequence[str], counts: Counts, rules: _Rules, steps_max: int) -> None:
    for _ in range(steps_max):
        path = _path(nodes, counts, rules)
        if path is None:
            return
        for number, giver, taker in path:
            rules.shift(number, giver, taker)
        for count in counts:
            count[path[0][1]] -= 1
            count[path[-1][2]] += 1


def _path(nodes: Sequence[str], counts: Counts, rules: _Rules) -> list[tuple[int, str, str]] | None:
    """Return the shortest way from a node with too much to one with too little, None if even."""
    by_load = sorted(nodes, key=lambda node: ([-count[node] for count in counts], node))
    for giver in by_load:
        if not _gains(counts, giver, by_load[-1]):
            return None
        before: dict[str, str] = {}
        waiting = deque([giver])
        while waiting:
            node = waiting.popleft()
            for taker in reversed(by_load):
                if taker == giver or taker in before:
                    continue
                if next(rules.movable(node, taker), None) is None:
                    continue
                before[taker] = node
                if _gains(counts, giver, taker):
                    path = _walked(before, giver, taker, rules)
                    if len({step[0] for step in path}) == len(path):
                        return path
                waiting.append(taker)
    return None


def _gains(counts: Counts, giver: str, taker: str) -> bool:
    """Whether things are more even when one goes from a node to another."""
    for count in counts:
        difference = count[giver] - count[taker]
        if difference != 1:
            return difference > 1
    return False


def _walked(
    before: Mapping[str, str], giver: str, taker: str, rules: _Rules
) -> list[tuple[int, str, str]]:
    path = []
    while taker != giver:
        node = before[taker]
        path.append((rules.chosen(node, taker), node, taker))
        taker = node
    return path[::-1]
