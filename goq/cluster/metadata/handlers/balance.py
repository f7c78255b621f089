"""Balance of replicas and leaders: from nodes with more to nodes with fewer, in few moves.

A *row* holds the replicas of a partition, in preferred order; rows and counts are changed in place.
There are several counts, the most important first. Nodes are balanced when no two nodes differ by
two or more in the first count, nor, among nodes that differ by one there, in the second, and so on.

A donor may not be able to give to a receiver directly, because of racks or because the receiver
already has a replica. Then it gives to a third node that can: the shortest such path is taken, like
an augmenting path of a matching. Each step lowers the sum of squares of one count, and raises that
of no more important count, so the algorithm ends.
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
    """Balance replicas over ``nodes``; no partition ends on fewer racks than before.

    Of the candidate partitions the first moves. With the topic of each row in ``topics``, the one
    moves whose topic has the greatest surplus on the donor over the receiver.
    """
    counts_by_topic: dict[str, Counter[str]] = {}
    for topic, row in zip(topics or (), rows, strict=False):
        counts_by_topic.setdefault(topic, Counter()).update(row)
    rows_by_node: dict[str, set[int]] = {node: set() for node in nodes}
    for number, row in enumerate(rows):
        for node in row:
            if node in rows_by_node:
                rows_by_node[node].add(number)

    def movable_rows(donor: str, receiver: str) -> Iterator[int]:
        for number in rows_by_node[donor]:
            if number not in rows_by_node[receiver] and _keeps_racks(
                rows[number], donor, receiver, racks
            ):
                yield number

    def choose_row(donor: str, receiver: str) -> int:
        if topics is None:
            return min(movable_rows(donor, receiver))
        return min(
            movable_rows(donor, receiver),
            key=lambda number: (_surplus(counts_by_topic[topics[number]], receiver, donor), number),
        )

    def move_row(number: int, donor: str, receiver: str) -> None:
        rows[number][rows[number].index(donor)] = receiver
        rows_by_node[donor].remove(number)
        rows_by_node[receiver].add(number)
        if topics is not None:
            counts_by_topic[topics[number]][donor] -= 1
            counts_by_topic[topics[number]][receiver] += 1

    _balance(nodes, counts, _MoveRules(movable_rows, choose_row, move_row), steps_max)


def balance_leaders(
    rows: ReplicaRows, nodes: Sequence[str], counts: Counts, steps_max: int = 1_000_000
) -> None:
    """Balance preferred leaderships over ``nodes`` by changing the order of replicas."""
    rows_led_by: dict[str, set[int]] = {node: set() for node in nodes}
    for number, row in enumerate(rows):
        if row[0] in rows_led_by:
            rows_led_by[row[0]].add(number)

    def movable_rows(donor: str, receiver: str) -> Iterator[int]:
        return (number for number in rows_led_by[donor] if receiver in rows[number])

    def choose_row(donor: str, receiver: str) -> int:
        return min(movable_rows(donor, receiver))

    def move_row(number: int, donor: str, receiver: str) -> None:
        rows[number].remove(receiver)
        rows[number].insert(0, receiver)
        rows_led_by[donor].remove(number)
        rows_led_by[receiver].add(number)

    _balance(nodes, counts, _MoveRules(movable_rows, choose_row, move_row), steps_max)


def _surplus(counts: Counter[str], donor: str, receiver: str) -> int:
    return counts[donor] - counts[receiver]


def _keeps_racks(row: Sequence[str], donor: str, receiver: str, racks: Mapping[str, str]) -> bool:
    """Whether the number of racks stays the same or rises when ``receiver`` replaces ``donor``."""
    rack, given = racks[receiver], racks[donor]
    if rack == given:
        return True
    is_new, given_stays = True, False
    for node in row:
        if node != donor:
            is_new = is_new and racks[node] != rack
            given_stays = given_stays or racks[node] == given
    return is_new or given_stays


class _MoveRules(NamedTuple):
    """The rows that a node can give to another, the choice among them, and the move itself."""

    movable_rows: Callable[[str, str], Iterator[int]]
    choose_row: Callable[[str, str], int]
    move_row: Callable[[int, str, str], None]


def _balance(nodes: Sequence[str], counts: Counts, rules: _MoveRules, steps_max: int) -> None:
    for _ in range(steps_max):
        path = _find_path(nodes, counts, rules)
        if path is None:
            return
        for number, donor, receiver in path:
            rules.move_row(number, donor, receiver)
        for count in counts:
            count[path[0][1]] -= 1
            count[path[-1][2]] += 1


def _find_path(
    nodes: Sequence[str], counts: Counts, rules: _MoveRules
) -> list[tuple[int, str, str]] | None:
    """Return the shortest path from a node with too much to one with too little; None if even."""
    nodes_by_load = sorted(nodes, key=lambda node: ([-count[node] for count in counts], node))
    for donor in nodes_by_load:
        if not _is_improvement(counts, donor, nodes_by_load[-1]):
            return None
        path = _find_path_from(donor, nodes_by_load, counts, rules)
        if path is not None:
            return path
    return None


def _find_path_from(
    donor: str, nodes_by_load: Sequence[str], counts: Counts, rules: _MoveRules
) -> list[tuple[int, str, str]] | None:
    previous: dict[str, str] = {}
    queue = deque([donor])
    while queue:
        node = queue.popleft()
        for receiver in reversed(nodes_by_load):
            if receiver == donor or receiver in previous:
                continue
            if next(rules.movable_rows(node, receiver), None) is None:
                continue
            previous[receiver] = node
            if _is_improvement(counts, donor, receiver):
                path = _build_path(previous, donor, receiver, rules)
                if len({step[0] for step in path}) == len(path):
                    return path
            queue.append(receiver)
    return None


def _is_improvement(counts: Counts, donor: str, receiver: str) -> bool:
    """Whether moving one from a node to another makes the counts more even."""
    for count in counts:
        difference = count[donor] - count[receiver]
        if difference != 1:
            return difference > 1
    return False


def _build_path(
    previous: Mapping[str, str], donor: str, receiver: str, rules: _MoveRules
) -> list[tuple[int, str, str]]:
    path = []
    while receiver != donor:
        node = previous[receiver]
        path.append((rules.choose_row(node, receiver), node, receiver))
        receiver = node
    return path[::-1]
