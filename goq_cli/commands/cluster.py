"""``goq cluster``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.output.cluster import (
    is_degraded,
    print_cluster,
    print_moves,
    print_nodes,
    summary,
)
from goq_cli.output.output import confirm, notice, print_json, print_text, tell_done
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import Client, ClusterDescription, LeaderElection
    from goq.cluster.unsafe_recovery import RecoveryPlan

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
_Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0)]
_WATCH_S = 1.0
_NAMED_MAX = 20
_TLS_FLAGS = (
    "    --set security.tls.cert_file=FILE --set security.tls.key_file=FILE \\",
    "    --set security.tls.ca_file=FILE \\",
)
_CLEAR = "\x1b[2J\x1b[H"


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Every second, until Ctrl-C.")] = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="List all, not only those in trouble.")
    ] = False,
) -> None:
    """Show nodes, leaders, replicas, lag and moves; exit 1 when something is degraded.

    Degraded: a node that never came, is silent or is unfit to lead, or that does not reach another;
    no controller; a partition without a leader, with a replica out of sync, or damaged. Moving is
    not degraded.
    """
    with SESSION.client() as client:
        cluster = client.describe_cluster(lag=True)
        while watch:
            if sys.stdout.isatty() and not SESSION.json:
                sys.stdout.write(_CLEAR)
            _print(cluster, partitions)
            sys.stdout.flush()
            time.sleep(_WATCH_S)
            cluster = client.describe_cluster(lag=True)
    _print(cluster, partitions)
    if is_degraded(cluster):
        raise typer.Exit(1)


def _print(cluster: ClusterDescription, partitions: bool) -> None:
    if SESSION.json:
        print_json(cluster.raw)
    else:
        print_cluster(cluster, all_partitions=partitions)


@app.command()
def nodes() -> None:
    """List the nodes: state, leaderships, replicas, lag in messages."""
    with SESSION.client() as client:
        cluster = client.describe_cluster(lag=True)
    if SESSION.json:
        print_json({"nodes": cluster.raw["nodes"]})
    else:
        print_nodes(cluster)


@app.command()
def join(
    node: Annotated[str | None, typer.Argument(metavar="[NODE")] = None,
    address: Annotated[str | None, typer.Argument(metavar="HOST:PORT]")] = None,
) -> None:
    """Print how a node joins; or add a node that was started with all --peers and waits.

    A node that is started with --join is added automatically.
    """
    from goq.errors import Conflict

    with SESSION.client() as client:
        if node is not None and address is not None:
            client.add_node(node, address)
            tell_done({"joined": node}, f"{node} is let in")
            return
        cluster = client.describe_cluster()
        if not cluster.cluster:
            raise Conflict("this node is on its own: no other can join; see docs/cluster.md")
        asks_for_tokens = client.whoami().auth != "off"
    taken = ", ".join(known.id for known in cluster.nodes)
    via = next((n.url for n in cluster.nodes if n.status == "up"), "URL")
    if SESSION.json:
        print_json({"join": via, "taken": [known.id for known in cluster.nodes]})
        return
    print_text(
        f"On the new machine, with a name that is none of {taken}, and the cluster's secret:",
        "",
        "  goq serve --data-dir DIR --listen HOST:PORT --node-id NAME \\",
        "    --cluster-listen HOST:PORT --cluster-secret-file FILE \\",
        *(["    --set security.auth=tokens \\"] if asks_for_tokens else []),
        *(_TLS_FLAGS if via.startswith("https:") else []),
        f"    --join {via}",
        "",
        "Where the others have more flags, as --cluster-tls-cert-file, add its own.",
        "Then give it its share: goq cluster rebalance",
    )


@app.command()
def leave(
    node: Annotated[str, typer.Argument(metavar="NODE")],
    fewer_replicas: Annotated[
        bool,
        typer.Option("--fewer-replicas", help="Even if too few nodes remain for all replicas."),
    ] = False,
) -> None:
    """Decommission a node: move its replicas and leaderships away; return when it is removed.

    Ctrl-C stops the wait, not the decommission. A node that is lost for good leaves the same way:
    its replicas are copied from the others, or, if these are too few, after another node has
    joined.
    """
    with SESSION.client() as client:
        client.decommission_node(node, fewer_replicas=fewer_replicas)
        asked = client.describe_cluster()
        others = [n.url for n in asked.nodes if n.id != node]
    from goq.client import Client

    # A removed node gets no more metadata: ask the others.
    with Client(others, token=SESSION.servers_and_token()[1]) as client:
        try:
            _wait_until_gone(client, node)
        except KeyboardInterrupt:
            notice(f"\n{node} goes on leaving; goq cluster status shows how far it is")
            raise
    if SESSION.json:
        print_json({"left": node})
    else:
        notice(f"{node} has left; stop it")


def _wait_until_gone(client: Client, node: str) -> None:
    said = ""
    while True:
        cluster = client.describe_cluster(lag=True)
        if node not in (known.id for known in cluster.nodes):
            return
        left = sum(
            node in (*p.replicas, *p.adding) for topic in cluster.topics for p in topic.partitions
        )
        text = f"{node} has {left} replicas still; {summary(cluster)}"
        if text != said:
            notice(text)
            said = text
        time.sleep(_WATCH_S / 2)


@app.command()
def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the moves.")] = False,
) -> None:
    """Balance replicas and leaderships over the nodes, by few moves.

    Moves continue in the background, some at a time; goq cluster status shows them.
    """
    with SESSION.client() as client:
        moves = client.rebalance(dry_run=dry_run)
        earlier = [] if moves else client.describe_cluster(lag=True).moves
    if SESSION.json:
        print_json({"dry_run": dry_run, "moves": [move.raw for move in moves]})
    elif earlier:
        print_moves(earlier)
        print_text("", "no more to plan; these moves are not done yet")
    elif not moves:
        notice("all is even")
    else:
        print_moves(moves)
        if not dry_run:
            print_text("", "until they are done, goq cluster status says moving")
    if any(move.refusal is not None for move in moves):
        raise typer.Exit(1)


@app.command()
def move(
    topic: _Topic,
    partition: _Partition,
    to: Annotated[
        str,
        typer.Option("--to", metavar="N1,N2,…", help="The replicas, the preferred leader first."),
    ] = "",
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the move.")] = False,
) -> None:
    """Move a partition to other nodes; it stays in use."""
    from goq.errors import UsageError

    if bool(to) == cancel:
        raise UsageError("say --to N1,N2,… or --cancel")
    with SESSION.client() as client:
        if cancel:
            client.cancel_reassignment(topic, partition)
        else:
            client.reassign_partition(topic, partition, to.split(","))
    done = {"topic": topic, "partition": partition}
    done |= {"cancelled": True} if cancel else {"to": to.split(",")}
    tell_done(done, f"{topic}:{partition} {'stays' if cancel else f'moves to {to}'}")


@app.command()
def elect(
    topic: _Topic,
    partition: _Partition,
    leader: Annotated[
        str | None, typer.Option(metavar="NODE", help="Default: the preferred replica.")
    ] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Elect a node that may lack messages: they are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Elect another in-sync node as the leader of a partition; it is preferred from then on.

    A partition whose in-sync nodes are all lost has no leader. --unclean elects a node with any
    replica; the command first prints what would be lost, as far as nodes answer.
    """
    with SESSION.client() as client:
        if unclean:
            planned = client.elect_leader(topic, partition, leader, unclean=True, dry_run=True)
            confirm(_warning(planned), yes)
        elected = client.elect_leader(topic, partition, leader, unclean=unclean)
    if SESSION.json:
        print_json(elected.raw)
    else:
        notice(f"{topic}:{partition} is led by {elected.leader}")


def _warning(planned: LeaderElection) -> str:
    ends = ", ".join(
        f"{replica.node} up to {replica.end_offset}"
        if replica.end_offset is not None
        else f"{replica.node} does not answer"
        for replica in planned.replicas
    )
    silent = any(replica.end_offset is None for replica in planned.replicas)
    return (
        f"The replicas of {planned.topic}:{planned.partition}: {ends}. With"
        f" {planned.leader} as leader {planned.lost_messages} messages are lost"
        f"{', and whatever only the silent ones have' if silent else ''}."
        " What consumers did may be forgotten, too. Elect it?"
    )


@app.command("set")
def set_settings(
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…")],
) -> None:
    """Change the settings of the cluster.

    replication_factor (of new topics), min_insync, moves_at_once, move_bytes_per_s (as 50MB, 0 for
    no bound; of each node that sends).
    """
    from goq.config.types import count
    from goq.errors import UsageError
    from goq.units import parse_size_bytes
    from goq_cli.output.output import parse_settings

    pairs = parse_settings(settings)
    sizes, counts = {"move_bytes_per_s"}, {"replication_factor", "min_insync", "moves_at_once"}
    if unknown := pairs.keys() - sizes - counts:
        raise UsageError(f"there is no setting {sorted(unknown)[0]}; see goq cluster set --help")
    whole = count(0, 2**31).parse  # the node knows the bounds
    values = {
        name: parse_size_bytes(text, field=name) if name in sizes else whole(text, name)
        for name, text in pairs.items()
    }
    with SESSION.client() as client:
        now = client.set_cluster_config(**values)
    if SESSION.json:
        print_json(now.raw)
    else:
        notice(", ".join(f"{name}={value}" for name, value in now.raw.items()))


@app.command()
def recover(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="The folder of the one node.")
    ],
    yes: Annotated[
        bool,
        typer.Option(
            "--yes-lose-what-others-had", help="Do it; else only print what would be lost."
        ),
    ] = False,
) -> None:
    """Continue from one node's folder, when MOST nodes of a cluster are lost FOR GOOD.

    Stop all nodes, and never use the folders of the others again: they would form a second cluster.
    Data that only they had is lost. The node becomes a cluster of one: it keeps its replicas, and
    partitions without a replica there are empty. Others join it with empty folders. Choose the node
    with the most data. For a single lost node use goq cluster leave instead.
    """
    from goq.cluster.unsafe_recovery import UnsafeRecovery
    from goq.storage.disk import RealDisk

    recovery = UnsafeRecovery(RealDisk(), data_dir)
    try:
        plan = recovery.plan
        if yes:
            recovery.execute()
    finally:
        recovery.close()
    if SESSION.json:
        print_json({"done": yes, **plan._asdict(), "survival": plan.survival._asdict()})
        return
    _print_recovery(plan, is_done=yes)
    if yes:
        notice(f"{plan.node} is a cluster of its own: start it with the same flags as before")
    else:
        notice("nothing was changed; to do it: --yes-lose-what-others-had")


def _print_recovery(plan: RecoveryPlan, *, is_done: bool) -> None:
    others = ", ".join(plan.given_up)
    if is_done:
        print_text(f"DONE: {plan.node} goes on alone; given up for good: {others}")
    else:
        print_text(f"A LOOK ONLY: {plan.node} would go on alone, and give up for good: {others}")
    empty = "NOT here, and empty from now on" if is_done else "NOT here, and would be empty"
    for what, partitions in (
        ("in sync here, with all that was acknowledged", plan.survival.in_sync),
        ("here, but WITHOUT the newest that was acknowledged", plan.survival.behind),
        (empty, plan.survival.lost),
    ):
        if partitions:
            more = len(partitions) - _NAMED_MAX
            named = ", ".join(partitions[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
            print_text(f"{len(partitions)} partitions {what}: {named}")
