"""Output of ``goq cluster``: the summary, nodes, topics, moves, and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from goq import limits
from goq_cli.output.output import print_text
from goq_cli.output.table import print_table

if TYPE_CHECKING:
    from goq.client import (
        ClusterDescription,
        ClusterPartition,
        ClusterTopic,
        PartitionReassignment,
    )

_WELL = ("up", "leaving")


def is_degraded(cluster: ClusterDescription) -> bool:
    """Whether anything is degraded; moves and leaving nodes are not."""
    return bool(
        cluster.offline
        or cluster.under_replicated
        or cluster.controller is None
        or cluster.diverged
        or cluster.absent
        or any(node.status not in _WELL or node.unreachable for node in cluster.nodes)
        or any(partition.damaged for _, partition in partitions_of(cluster))
    )


def is_moving(cluster: ClusterDescription) -> bool:
    """Whether moves are planned or under way, or a node is leaving."""
    return bool(cluster.moves) or any(node.status == "leaving" for node in cluster.nodes)


def partitions_of(cluster: ClusterDescription) -> Iterator[tuple[str, ClusterPartition]]:
    """Yield all partitions with the name of their topic."""
    for topic in cluster.topics:
        for partition in topic.partitions:
            yield topic.name, partition


def summary(cluster: ClusterDescription) -> str:
    """Return the state of the cluster in one line."""
    if not cluster.cluster:
        return f"node {cluster.node} is on its own"
    parts = [f"{len(cluster.nodes)} nodes"]
    controller = cluster.controller
    parts.append(f"controller {controller}" if controller else "NO CONTROLLER")
    if cluster.unheard_s is not None:
        parts.append(f"as of {cluster.unheard_s:.0f} s ago")
    elif controller is None and cluster.nodes:
        parts.append(f"as of before the start of {cluster.node}")
    if cluster.absent:
        parts.append(f"never came: {' '.join(node.id for node in cluster.absent)}")
    if cluster.diverged:
        parts.append(f"METADATA OF {cluster.node} DIFFERS, BEING REPLACED")
    parts.append(f"{sum(1 for _ in partitions_of(cluster))} partitions")
    for count, what in (
        (len(cluster.offline), "offline"),
        (len(cluster.under_replicated), "under-replicated"),
        (len(cluster.moves), "moving"),
    ):
        if count:
            parts.append(f"{count} {what}")
    state = "moving" if is_moving(cluster) else "ok"
    state = "degraded" if is_degraded(cluster) else state
    return f"{state}: {', '.join(parts)}"


def print_cluster(cluster: ClusterDescription, *, all_partitions: bool) -> None:
    """Print nodes, topics, moves, and the degraded partitions, or all."""
    print_text(summary(cluster), "")
    print_nodes(cluster)
    if cluster.topics:
        print_text("")
        _print_topics(cluster)
    rows = [
        _partition_row(topic, partition)
        for topic in cluster.topics
        for partition in topic.partitions
        if all_partitions or _is_in_trouble(partition)
    ]
    if rows:
        print_text("")
        columns = ("partition", "leader", "replicas", "in sync", "lag", "behind", "state")
        print_table(columns, rows)
    if cluster.moves:
        print_text("")
        print_moves(cluster.moves)


def print_nodes(cluster: ClusterDescription) -> None:
    """Print the nodes with leaderships, replicas and lag."""
    leads: Counter[str] = Counter()
    has: Counter[str] = Counter()
    lags: Counter[str] = Counter()
    for _, partition in partitions_of(cluster):
        has.update([*partition.replicas, *partition.adding])
        leads.update([partition.leader] if partition.leader else ())
        for follower in partition.followers:
            lags[follower.node] += follower.lag_messages or 0
    rows = [
        (
            node.id,
            f"{node.status}: {node.reason}" if node.reason is not None else node.status,
            node.url,
            node.rack,
            leads[node.id],
            has[node.id],
            lags[node.id],
        )
        for node in cluster.nodes
    ] + [
        (
            node.id,
            "never came" if node.reason is None else f"never came: {node.reason}",
            node.address,
            None,
            0,
            0,
            0,
        )
        for node in cluster.absent
    ]
    print_table(("node", "status", "url", "rack", "leads", "replicas", "lag"), rows)
    for node in cluster.nodes:
        skew_s = node.clock_skew_s or 0.0
        if abs(skew_s) * 1000 > limits.CLOCK_SKEW_WARN_MS:
            side = "ahead of" if skew_s > 0 else "behind"
            print_text(f"warning: the clock of {node.id} is {abs(skew_s):.1f} s {side} the median")
        if node.unreachable:
            print_text(f"warning: {node.id} does not reach {', '.join(node.unreachable)}")


def print_moves(moves: Sequence[PartitionReassignment]) -> None:
    """Print moves, planned or under way."""
    rows = [
        (
            f"{move.topic}:{move.partition}",
            ",".join(move.replicas),
            ",".join(move.target),
            _progress(move),
        )
        for move in moves
    ]
    print_table(("move of", "from", "to", "state"), rows)


def _progress(move: PartitionReassignment) -> str:
    if refusal := move.refusal:
        return f"refused: {refusal}"
    state = move.state or ""
    return f"{state} {move.progress:.0%}" if move.progress is not None else state


def _print_topics(cluster: ClusterDescription) -> None:
    offline, under = set(cluster.offline), set(cluster.under_replicated)
    rows = []
    for topic in cluster.topics:
        names = {f"{topic.name}:{p.partition}" for p in topic.partitions}
        leaders = Counter(p.leader for p in topic.partitions if p.leader)
        rows.append(
            (
                topic.name,
                len(names),
                topic.replication_factor,
                topic.min_insync,
                " ".join(f"{node}:{count}" for node, count in sorted(leaders.items())),
                len(names & under),
                len(names & offline),
            )
        )
    counts = ("partitions", "replicas", "min in-sync")
    print_table(("topic", *counts, "leaders", "under-replicated", "offline"), rows)


def _is_in_trouble(partition: ClusterPartition) -> bool:
    lacks = _lacks(partition)
    return bool(partition.offline or lacks or partition.damaged)


def _lacks(partition: ClusterPartition) -> int:
    """Return the number of replicas that are out of sync or missing."""
    return partition.wanted - len(set(partition.replicas) & set(partition.in_sync))


def _partition_row(topic: ClusterTopic, partition: ClusterPartition) -> tuple[object, ...]:
    followers = partition.followers
    lag = [
        f"{f.node}:{f.lag_messages}" if f.lag_messages is not None else f"{f.node}:?"
        for f in followers
        if f.lag_messages != 0
    ]
    behind = [f"{f.node}:{f.lag_s:.1f} s" for f in followers if f.lag_s]
    return (
        f"{topic.name}:{partition.partition}",
        partition.leader or "none",
        ",".join(partition.replicas),
        ",".join(partition.in_sync),
        " ".join(lag),
        " ".join(behind),
        ", ".join(_states(topic, partition)),
    )


def _states(topic: ClusterTopic, partition: ClusterPartition) -> Iterator[str]:
    needed = min(topic.min_insync, len(partition.replicas))
    if partition.offline:
        yield "offline"
    elif len(partition.in_sync) < needed:
        yield f"takes no writes ({needed} in sync needed)"
    if lacks := _lacks(partition):
        wanted = partition.wanted
        yield f"under-replicated ({wanted - lacks} of {wanted})"
    if damaged := partition.damaged:
        yield f"damaged on {','.join(damaged)}"
    if adding := partition.adding:
        yield f"copying to {','.join(adding)}"
    if partition.unclean:
        yield "elected uncleanly"
