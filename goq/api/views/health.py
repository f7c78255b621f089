"""The health of a node's topics: partitions offline and damaged, and problems with what to do.

A topic without trouble takes a fraction of a microsecond for each partition: monitoring and every
open console ask again and again. Work on the event loop is done in slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from goq.broker.broker import Broker
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice

if TYPE_CHECKING:
    from goq.cluster.cluster_node import ClusterNode

LOOK_STEP: Final = 32
"""So many topics without trouble are looked at before a look at the time."""


class ProblemOut(msgspec.Struct):
    """A topic, a partition or a file that is not well: its state, why, and what to do."""

    what: str
    state: str
    reason: str
    advice: str


async def troubled_topics(broker: Broker) -> list[Topic]:
    """Return the topics in doubt, and those with a partition that is offline or damaged."""
    troubled: list[Topic] = []
    time_slice = TimeSlice()
    for number, topic in enumerate(list(broker.topics.values())):
        if topic.doubt is not None or not topic.partitions.are_sound:
            troubled.append(topic)
        if not number % LOOK_STEP and time_slice.is_over:
            await time_slice.next()
    return troubled


async def offline_and_damaged(topics: Sequence[Topic]) -> tuple[list[str], list[str]]:
    """Return the partitions of topics that are offline, and those with damage."""
    offline: list[str] = []
    damaged: list[str] = []
    time_slice = TimeSlice()
    for topic in topics:
        if time_slice.is_over:
            await time_slice.next()
        for partition in topic.partitions.here():
            if not partition.is_online:
                offline.append(str(partition.identity))
            if partition.message_damage or partition.event_damage:
                damaged.append(str(partition.identity))
        offline += [f"{topic.name}:{number}" for number in topic.partitions.offline]
    return sorted(set(offline)), damaged


async def problems_of(broker: Broker, topics: Sequence[Topic]) -> list[ProblemOut]:
    """Return what is not well about a node and these of its topics, with what to do."""
    problems: list[ProblemOut] = []
    time_slice = TimeSlice()
    for topic in topics:
        if time_slice.is_over:
            await time_slice.next()
        name = topic.name
        if topic.doubt is not None:
            kind, reason = topic.doubt
            advice = (
                f"goq topic show {name}, then goq topic alter {name} with the settings it should"
                " have; without any it keeps those that are shown"
            )
            problems.append(ProblemOut(f"topic {name}", str(kind), reason, advice))
        for number, error in topic.partitions.failures().items():
            advice = (
                "the node tries again within 10 s; when the cause is removed:"
                f" goq topic reopen {name} {number}"
            )
            problems.append(ProblemOut(f"{name}:{number}", "offline", error.detail, advice))
    problems += _archive_problems(broker)
    advice = "nothing: the node goes on without it, and tells of it until it is restarted"
    problems += [
        ProblemOut("node.db", "damaged", reason, advice) for reason in broker.metadata.problems
    ]
    if broker.journal is not None:
        advice = "goq doctor --verify shows what is lost; then delete the file that is named"
        problems += [
            ProblemOut("journal", "damaged", text, advice) for text in broker.journal.problems
        ]
    return problems


def cluster_problems(cluster: ClusterNode) -> list[ProblemOut]:
    """Return what keeps a node of a cluster from leading, and its replicas that are not open."""
    problems: list[ProblemOut] = []
    if reason := cluster.disk_health.reason:
        advice = (
            "other nodes lead meanwhile, and this one leads again once its disk takes writes: see"
            " its log and the system's, and replace a disk that goes on failing"
        )
        problems.append(ProblemOut("node", "unfit", f"it leads nothing: {reason}", advice))
    advice = "the node tries again every second; the others go on without this replica"
    problems += [
        ProblemOut(f"{replica.key.topic}:{replica.key.number}", "offline", reason, advice)
        for replica in cluster.replicas
        if (reason := str(replica.failure or ""))
    ]
    return problems


def _archive_problems(broker: Broker) -> Iterator[ProblemOut]:
    """Yield the damage that reads have found in archived segments."""
    advice = (
        "put a file back from a backup, then restart the node, or put its object back: a read finds"
        " it after a minute; goq doctor --verify checks all archived segments"
    )
    for identity, log, damage in broker.archive.damaged():
        more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        what = f"archived {log} of {identity}"
        yield ProblemOut(what, "damaged", f"{damage[0]}{more}", advice)
