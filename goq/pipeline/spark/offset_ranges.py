"""Offset ranges of a Spark query, from its options, divided among its tasks.

Offsets have the form of Spark's Kafka source: ``{"orders": {"0": 17, "1": -2}}`` by topic and
partition, -2 for the earliest, -1 for the end; ``earliest`` and ``latest`` for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from goq.errors import Conflict, InvalidInput
from goq.pipeline.arrow.node_source import LogBounds

EARLIEST, LATEST = -2, -1
_ID = "id"
_BEGAN = "began"
Offsets = dict[str, dict[int, int]]
"""By topic and partition."""


class Range(NamedTuple):
    """The offsets that one task reads."""

    topic: str
    partition: int
    start: int
    end: int


def parse_offsets(text: str, field: str) -> str | Offsets:
    """Return ``earliest``, ``latest``, or offsets by partition; raise ``InvalidInput``."""
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


def parse_times(text: str, field: str) -> Offsets:
    """Return times in milliseconds by partition; raise ``InvalidInput``."""
    try:
        return msgspec.json.decode(text, type=Offsets, strict=False)
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"{text[:200]!r} are no times in milliseconds, as"
            f' {{"orders": {{"0": 1768473000000}}}}: {error}',
            field=field,
        ) from None


def check_named(wanted: Offsets, bounds: Mapping[str, Mapping[int, LogBounds]], field: str) -> None:
    """Raise ``InvalidInput`` unless exactly the existing partitions are named."""
    for topic in wanted.keys() - bounds.keys():
        raise InvalidInput(
            f"{field} names {topic[:200]!r}, which is not read; what is read is {sorted(bounds)}",
            field=field,
        )
    for topic, partitions in bounds.items():
        if wanted.get(topic, {}).keys() != partitions.keys():
            raise InvalidInput(
                f"{field} names the partitions {sorted(wanted.get(topic, {}))} of {topic}, which"
                f" has {sorted(partitions)}: name each",
                field=field,
            )


def resolve(
    wanted: str | Offsets, bounds: Mapping[str, Mapping[int, LogBounds]], field: str
) -> Offsets:
    """Return an offset for every partition.

    Raises ``InvalidInput`` unless exactly the existing partitions are named, each with an offset up
    to its end.
    """
    if isinstance(wanted, str):
        is_start = wanted == "earliest"
        return {
            topic: {p: b.start if is_start else b.end for p, b in sorted(partitions.items())}
            for topic, partitions in sorted(bounds.items())
        }
    check_named(wanted, bounds, field)
    for topic, partitions in bounds.items():
        for partition, offset in wanted[topic].items():
            if not EARLIEST <= offset <= partitions[partition].end:
                raise InvalidInput(
                    f"{field} says {offset} for {topic}, partition {partition}, which ends at"
                    f" {partitions[partition].end}; -2 is its first offset, -1 its end",
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


def check_order(start: Offsets, end: Offsets, field: str) -> None:
    """Raise ``InvalidInput`` if a range ends before it starts."""
    for topic, partitions in start.items():
        for partition, first in partitions.items():
            stop = end.get(topic, {}).get(partition, first)
            if stop < first:
                raise InvalidInput(
                    f"the range of {topic}, partition {partition}, ends at {stop}, before its start"
                    f" at {first}",
                    field=field,
                )


def ranges_between(start: Offsets, end: Offsets, tasks_min: int = 1) -> list[Range]:
    """Return the ranges between two offsets, at least one a partition and ``tasks_min`` in all."""
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


class StreamOffsets(NamedTuple):
    """The position of a stream: offsets, and the ids of their topics as far as they are known.

    A topic that was deleted and created again has another id. The end of a query's first batch
    also has its start, ``began``: a checkpoint has ends only, and by the time that Spark asks for
    the start again, as after a crash, ``latest`` and ``earliest`` are elsewhere.
    """

    offsets: Offsets
    ids: Mapping[str, str]
    began: Offsets | None = None

    @property
    def is_first(self) -> bool:
        """Whether nothing comes before it: the start of the first batch, or its end without any."""
        return self.began == self.offsets

    def start_of_batch(self, asked: StreamOffsets) -> StreamOffsets:
        """Return the start of the batch that ends here; ``asked`` unless it is the first."""
        return asked if self.began is None else self._replace(offsets=self.began)

    def of_other_topics(self, ids: Mapping[str, str]) -> set[str]:
        """Return the names whose topics, by these ids, are not those of the position any more."""
        return {name for name, known in self.ids.items() if ids.get(name, known) != known}

    def without(self, names: Collection[str]) -> StreamOffsets:
        """Return the position in the other topics."""
        return self._replace(offsets={t: o for t, o in self.offsets.items() if t not in names})


def check_offsets(stands: StreamOffsets, now: StreamOffsets) -> None:
    """Raise ``Conflict`` unless every partition of a stream's offsets is one that it reads."""
    anew = stands.of_other_topics(now.ids)
    for topic, partitions in stands.offsets.items():
        for partition, offset in partitions.items():
            end = now.offsets.get(topic, {}).get(partition)
            if end is None or end < offset or topic in anew:
                what = "is not read any more" if end is None else f"ends at {end} now"
                raise Conflict(
                    f"the stream stands at offset {offset} of {topic}, partition {partition}, which"
                    f" {what}: it was deleted or made anew, or the checkpoint is that of a query of"
                    " other topics; set failOnDataLoss=false to go on with what there is",
                    field="failOnDataLoss",
                )


def check_same_topics(stands: StreamOffsets, ids: Mapping[str, str]) -> None:
    """Raise ``Conflict`` if a topic of a batch was deleted and created again."""
    for topic in sorted(stands.of_other_topics(ids)):
        raise Conflict(
            f"{topic} was deleted and made anew since the batch was planned (id"
            f" {stands.ids[topic]}, now {ids[topic]}); set failOnDataLoss=false to go on with what"
            " there is",
            field="failOnDataLoss",
        )


def what_is_there(
    start: StreamOffsets,
    end: StreamOffsets,
    bounds: Mapping[str, Mapping[int, LogBounds]],
    ids: Mapping[str, str],
) -> tuple[Offsets, Offsets]:
    """Return the part that the partitions hold; all up to ``end`` for a recreated topic.

    Of a topic that was created again since ``end`` was planned, the next batch has all. One whose
    end went back, though it is the same, has nothing new.
    """
    start = start.without(start.of_other_topics(ids))
    end = end.without(end.of_other_topics(ids))
    starts: Offsets = {}
    ends: Offsets = {}
    for topic, partitions in bounds.items():
        for partition, held in partitions.items():
            asked = end.offsets.get(topic, {}).get(partition, 0)
            begun = start.offsets.get(topic, {}).get(partition, held.start)
            if begun > asked and topic not in start.ids:  # perhaps another topic of the name
                begun = held.start
            starts.setdefault(topic, {})[partition] = begun
            ends.setdefault(topic, {})[partition] = min(asked, held.end)
    return starts, ends


def _split(whole: Range, total: int, tasks: int) -> Iterator[Range]:
    count = whole.end - whole.start
    parts = max(1, min(count, round(tasks * count / total)))
    cuts = [whole.start + count * n // parts for n in range(parts + 1)]
    for start, end in itertools.pairwise(cuts):
        yield whole._replace(start=start, end=end)


def limited(
    start: Offsets, end: Offsets, most: float, sizes: Mapping[str, float] | None = None
) -> Offsets:
    """Return an end at most about ``most`` ahead, divided in proportion to the backlog.

    A message counts 1, or the size of its topic's messages in ``sizes``. Each partition with a
    backlog gets at least one message.
    """
    waiting = {
        (topic, partition): max(0, stop - start.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, stop in partitions.items()
    }
    total = sum(count * (sizes or {}).get(topic, 1) for (topic, _), count in waiting.items())
    if total <= most:
        return end
    return {
        topic: {
            partition: stop - count + min(count, math.ceil(count * most / total))
            for partition, stop in partitions.items()
            for count in (waiting[topic, partition],)
        }
        for topic, partitions in end.items()
    }


def backlog(start: Offsets, end: Offsets) -> int:
    """Return the number of offsets between two positions."""
    return sum(
        max(0, stop - start.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, stop in partitions.items()
    )


def to_json(position: StreamOffsets) -> dict[str, dict[str, Any]]:
    """Return a position as JSON for a checkpoint, in a fixed order: Spark compares them."""
    found: dict[str, dict[str, Any]] = {}
    for topic, partitions in sorted(position.offsets.items()):
        found[topic] = {str(p): partitions[p] for p in sorted(partitions)}
        if position.ids.get(topic):
            found[topic][_ID] = position.ids[topic]
        if began := (position.began or {}).get(topic):
            found[topic][_BEGAN] = {str(p): began[p] for p in sorted(began)}
    return found


def from_json(checkpoint: object) -> StreamOffsets:
    """Return the position of a checkpoint; raise ``Conflict`` for another source's checkpoint."""
    try:
        found = msgspec.convert(checkpoint, type=dict[str, dict[str, Any]])
        ids = {topic: str(each.pop(_ID)) for topic, each in found.items() if _ID in each}
        began = {topic: each.pop(_BEGAN) for topic, each in found.items() if _BEGAN in each}
        offsets, first = (
            msgspec.convert(each, type=Offsets, strict=False) for each in (found, began)
        )
        return StreamOffsets(offsets, ids, first or None)
    except msgspec.ValidationError as error:
        raise Conflict(
            f"the checkpoint is not that of a stream from goq: {error}; use a new"
            " checkpointLocation"
        ) from None


def option_list(text: str) -> Sequence[str]:
    """Return the names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]
