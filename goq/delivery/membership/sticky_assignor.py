"""Who is to have which partition: balanced within one, and as few moves as that allows.

With *p* partitions and *n* members everybody is to have ``p // n`` of them, and ``p % n`` members
one more: those who have the most already, since each partition they may keep is a move saved.
Who has too many gives up the rest, and what is free fills up those who have too few. So a join
moves at most ``ceil(p / n)`` partitions, all of them to the newcomer, and a leave moves only what
the leaver had: the same as the sticky assignor of Kafka (KIP-54), without its generations, for
here one place knows everything.

The answer depends on nothing but the arguments: no chance, and no order of a dictionary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def assign(
    members: Collection[str], current: Sequence[str | None], held: Sequence[str | None]
) -> list[str | None]:
    """Return the member that is to have each partition, None for all if there is no member.

    ``current`` is who was to have each before; one that is no member any more counts for nothing.
    ``held`` is who had it last in fact, which differs while it is being handed over: giving it
    back to that one costs no pause, so that a partition is chosen before others if it can be.
    """
    if not members:
        return [None] * len(current)
    owned: dict[str, list[int]] = {member: [] for member in sorted(members)}
    free: list[int] = []
    for partition, member in enumerate(current):
        (free if member is None else owned.get(member, free)).append(partition)
    quotas = _quotas(owned, len(current))
    hungry = {member for member in owned if len(owned[member]) < quotas[member]}
    for member, partitions in owned.items():
        surplus = max(0, len(partitions) - quotas[member])
        easiest = sorted((held[p] not in hungry, held[p] == member, -p) for p in partitions)
        given_up = {-negative for _, _, negative in easiest[:surplus]}
        free += given_up
        owned[member] = [p for p in partitions if p not in given_up]
    left = []
    for partition in sorted(free):
        before = held[partition]
        if before in hungry and len(owned[before]) < quotas[before]:
            owned[before].append(partition)
        else:
            left.append(partition)
    rest = iter(left)
    for member in sorted(hungry):
        owned[member] += [next(rest) for _ in range(quotas[member] - len(owned[member]))]
    targets: list[str | None] = [None] * len(current)
    for member, partitions in owned.items():
        for partition in partitions:
            targets[partition] = member
    return targets


def _quotas(owned: dict[str, list[int]], partition_count: int) -> dict[str, int]:
    """Return how many partitions each member is to have."""
    share, more = divmod(partition_count, len(owned))
    richest = sorted(owned, key=lambda member: (-len(owned[member]), member))
    return {member: share + (rank < more) for rank, member in enumerate(richest)}
