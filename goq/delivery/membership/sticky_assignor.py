"""The assignment of partitions to members: balanced within one, with as few moves as that allows.

With *p* partitions and *n* members each member gets ``p // n`` of them, and ``p % n`` members get
one more. Those are the members with the most already, since each partition that they keep saves a
move. A member with too many gives up the rest, and free partitions go to members with too few. So a
join moves at most ``ceil(p / n)`` partitions, all of them to the new member, and a leave moves only
the partitions of the leaver. This is the sticky assignor of Kafka (KIP-54) without its generations,
since one place knows everything.

The answer depends on nothing but the arguments: no chance, and no order of a dictionary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def assign(
    members: Collection[str], current: Sequence[str | None], held: Sequence[str | None]
) -> list[str | None]:
    """Return the next owner of each partition, None for all if there is no member.

    ``current`` is the assignment before; a consumer that is no longer a member does not count.
    ``held`` is the last owner in fact, which differs while a partition moves: giving it back to
    that consumer costs no pause, so such a partition is preferred.
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
        surplus = len(partitions) - quotas[member]
        if surplus <= 0:
            continue
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
    """Return how many partitions each member gets."""
    share, more = divmod(partition_count, len(owned))
    richest = sorted(owned, key=lambda member: (-len(owned[member]), member))
    return {member: share + (rank < more) for rank, member in enumerate(richest)}
