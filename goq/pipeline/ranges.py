"""Which offsets a Spark query reads: from its options, and divided among its tasks.

Offsets are written as the Kafka source writes them: ``{"orders": {"0": 17, "1": -2}}`` by topic and
partition, -2 for the first that is kept, -1 for the end; ``earliest`` and ``latest`` for all.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from goq.errors import InvalidInput
from goq.pipeline.source import Bounds

EARLIEST, LATEST = -2, -1
Offsets = dict[str, dict[int, int]]
"""By topic and partition."""


class Range(NamedTuple):
    """What one task reads."""

    topic: str
    partition: int
    start: int
    end: int


def parse_offsets(text: str, field: str) -> str | Offsets:
    """Return ``earliest``, ``latest``, or offsets by topic and partition; else ``InvalidInput``."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return msgspec.json.decode(text, type=Offsets, strict=False)
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"{text[:200]!r} is neither earliest nor latest nor offsets as"
            f' {{"orders": {{"0": 17}}}}: {error}',
            field=field,
        ) from None


def resolve(
    wanted: str | Offsets, bounds: Mapping[str, Mapping[int, Bounds]], field: str
) -> Offsets:
    """Return an offset for every partition; raises ``InvalidInput`` where one is not named."""
    if isinstance(wanted, str):
        is_start = wanted == "earliest"
        return {
            topic: {p: b.start if is_start else b.end for p, b in sorted(partitions.items())}
            for topic, partitions in sorted(bounds.items())
        }
    for topic, partitions in bounds.items():
        if wanted.get(topic, {}).keys() != partitions.keys():
            raise InvalidInput(
                f"{field} names the partitions {sorted(wanted.get(topic, {}))} of {topic}, which"
                f" has {sorted(partitions)}: name each",
                field=field,
            )
    special = {
        EARLIEST: lambda each: each.start,
        LATEST: lambda each: each.end,
    }
    return {
        topic: {
            p: special[offset](bounds[topic][p]) if offset in special else offset
            for p, offset in sorted(wanted[topic].items())
        }
        for topic in sorted(bounds)
    }


def ranges_between(start: Offsets, end: Offsets, tasks_min: int = 1) -> list[Range]:
    """Return what lies between, a range for each partition; more of them for ``tasks_min``."""
    whole = [
        Range(topic, partition, start.get(topic, {}).get(partition, 0), stop)
        for topic, partitions in sorted(end.items())
        for partition, stop in sorted(partitions.items())
    ]
    whole = [each for each in whole if each.start < each.end]
    if len(whole) >= tasks_min:
        return whole
    total = sum(each.end - each.start for each in whole)
    return [part for each in whole for part in _split(each, total, tasks_min)]


def _split(whole: Range, total: int, tasks: int) -> Iterator[Range]:
    count = whole.end - whole.start
    parts = max(1, min(count, round(tasks * count / total)))
    cuts = [whole.start + count * n // parts for n in range(parts + 1)]
    for start, end in itertools.pairwise(cuts):
        yield whole._replace(start=start, end=end)


def limited(start: Offsets, end: Offsets, messages_max: int) -> Offsets:
    """Return an end with at most about ``messages_max`` before it, shared out by what waits."""
    waiting = {
        (topic, partition): max(0, stop - start.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, stop in partitions.items()
    }
    total = sum(waiting.values())
    if total <= messages_max:
        return end
    return {
        topic: {
            partition: stop - count + -(-count * messages_max // total)
            for partition, stop in partitions.items()
            for count in (waiting[topic, partition],)
        }
        for topic, partitions in end.items()
    }


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets as a checkpoint has them: always in the same order, for they are compared."""
    return {t: {str(p): ps[p] for p in sorted(ps)} for t, ps in sorted(offsets.items())}


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets of a checkpoint."""
    return {topic: {int(p): o for p, o in ps.items()} for topic, ps in offsets.items()}


def option_list(text: str) -> Sequence[str]:
    """Return the names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def dumps(offsets: Offsets) -> str:
    """Return offsets as text for a message to people."""
    return json.dumps(to_json(offsets))
