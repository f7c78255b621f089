"""``goq topic``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.output.output import confirm, format_time, notice, parse_settings, print_json
from goq_cli.output.table import print_table
from goq_cli.output.topic_history import print_history
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import (
        ClusterPartition,
        ClusterTopic,
        PartitionDescription,
        TopicDescription,
        TopicHistory,
    )

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_Name = Annotated[str, typer.Argument(metavar="NAME")]
_Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, as retention.age=7d; repeatable."),
]


@app.command()
def create(
    name: _Name,
    partitions: Annotated[int | None, typer.Option(help="Default: the node's, 6.")] = None,
    replication_factor: Annotated[
        int | None, typer.Option(help="Replicas of each partition. Default: the cluster's, 3.")
    ] = None,
    min_insync: Annotated[
        int | None,
        typer.Option(help="Replicas that an acknowledged write needs. Default: the cluster's, 2."),
    ] = None,
    settings: _Settings = [],
) -> None:
    """Create a topic."""
    with SESSION.client() as client:
        topic = client.create_topic(
            name,
            partitions,
            parse_settings(settings),
            replication_factor=replication_factor,
            min_insync=min_insync,
        )
    if SESSION.json:
        print_json(topic.raw)
    else:
        notice(f"created {name} with {len(topic.partitions)} partitions")


@app.command("list")
def list_topics() -> None:
    """List topics.

    Messages that compaction removed are counted, as they keep their offsets.
    """
    with SESSION.client() as client:
        topics = client.list_topics()
        counts = {t.name: len(t.partitions) for t in client.describe_cluster().topics}
    if SESSION.json:
        print_json({"topics": [topic.raw for topic in topics]})
        return
    rows = [
        (
            topic.name,
            counts.get(topic.name, len(topic.partitions)),
            sum(p.end_offset - p.start_offset for p in topic.partitions),
            sum(p.bytes for p in topic.partitions),
        )
        for topic in topics
    ]
    print_table(("topic", "partitions", "messages", "bytes"), rows)


@app.command()
def show(
    name: _Name,
    days: Annotated[int | None, typer.Option(help="Days to look back. Default: 14.")] = None,
) -> None:
    """Show a topic: partitions, messages a day, current rates, settings.

    Days are in UTC. Messages that retention deleted are not counted; those that compaction
    removed are, as they keep their offsets.
    """
    with SESSION.client() as client:
        topic = client.describe_topic(name)
        history = client.get_topic_history(name, days)
        placed = client.describe_cluster(name).topics
    if SESSION.json:
        print_json({**topic.raw, "history": history.raw})
    else:
        _print_topic(topic, history, placed)


@app.command()
def alter(
    name: _Name,
    settings: _Settings = [],
    partitions: Annotated[int | None, typer.Option(help="More than now.")] = None,
    replication_factor: Annotated[
        int | None, typer.Option(help="Replicas of each partition.")
    ] = None,
    min_insync: Annotated[
        int | None, typer.Option(help="Replicas that an acknowledged write needs.")
    ] = None,
    unset: Annotated[
        list[str], typer.Option("--unset", metavar="KEY", help="Back to its default; repeatable.")
    ] = [],
) -> None:
    """Change settings or the replication, or add partitions.

    More partitions move keys to other partitions. Stored messages keep the number of their lane, so
    append new lanes at the end of priority.lanes. Replicas are copied and removed in the
    background; goq cluster status shows it.
    """
    with SESSION.client() as client:
        topic = client.alter_topic(
            name,
            settings=parse_settings(settings),
            partitions=partitions,
            replication_factor=replication_factor,
            min_insync=min_insync,
            unset=unset,
        )
    if SESSION.json:
        print_json(topic.raw)
    else:
        _print_topic(topic)


@app.command()
def reopen(
    name: _Name, partition: Annotated[int, typer.Argument(metavar="PARTITION", help="Its number.")]
) -> None:
    """Open a partition that is offline, once its cause is removed.

    goq doctor lists such partitions and why they are offline.
    """
    with SESSION.client() as client:
        client.reopen_partition(name, partition)
    if SESSION.json:
        print_json({"reopened": f"{name}:{partition}"})
    else:
        notice(f"partition {partition} of {name} is online")


@app.command()
def delete(
    name: _Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> None:
    """Delete a topic and all its messages."""
    confirm(f"Delete topic {name} with everything in it?", yes)
    with SESSION.client() as client:
        client.delete_topic(name)
    if SESSION.json:
        print_json({"deleted": name})
    else:
        notice(f"deleted {name}")


def _print_topic(
    topic: TopicDescription,
    history: TopicHistory | None = None,
    placed: Sequence[ClusterTopic] = (),
) -> None:
    rows = _partition_rows(topic.partitions, [p for t in placed for p in t.partitions])
    print_table(("partition", "leader", "start", "end", "bytes", "damaged"), rows)
    if history is not None:
        print_history(history)
    if archived := topic.archived:
        counts = (archived.segments, archived.messages, archived.bytes)
        names = ("archived segments", "messages", "bytes", "since")
        print_table(names, [(*counts, format_time(archived.first_time) or "")])
    print_table(
        ("replication factor", "min in-sync"), [(topic.replication_factor, topic.min_insync)]
    )
    print_table(("setting", "value"), sorted(topic.settings.items()))


def _partition_rows(
    known: Sequence[PartitionDescription], placed: Sequence[ClusterPartition]
) -> list[tuple[object, ...]]:
    """Return a row for each partition; only the leader if it did not answer."""
    rows: dict[int, tuple[object, ...]] = {
        p.partition: (p.partition, p.leader or "offline", None, None, None, None) for p in placed
    }
    for p in known:
        damaged = sum(d.end_offset - d.start_offset for d in p.damaged)
        leader = p.leader if p.online else "offline"
        bounds = p.start_offset, p.end_offset, p.bytes
        rows[p.partition] = (p.partition, leader, *bounds, damaged)
    return [row for _, row in sorted(rows.items())]
