"""``goq cluster recover``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.output.output import notice, print_json, print_text
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.cluster.unsafe_recovery import RecoveryPlan

_NAMED_MAX = 20


def command(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Of the one node that goes on.")
    ],
    yes: Annotated[
        bool,
        typer.Option(
            "--yes-lose-what-others-had", help="Do it; without this, only say what would be lost."
        ),
    ] = False,
) -> None:
    """Go on from one node's folder, when MOST nodes of a cluster are lost FOR GOOD.

    All nodes must be stopped, and the folders of the others must never be used again: they would be
    a second cluster. What only they had is lost. The node is then a cluster of one, with what it
    has of every partition, and empty ones for those that it has nothing of; others join it with
    empty folders. Choose the node that has most. A single lost node needs none of this: goq cluster
    leave.
    """
    from goq.cluster.unsafe_recovery import UnsafeRecovery
    from goq.storage.disk import RealDisk

    recovering = UnsafeRecovery(RealDisk(), data_dir)
    try:
        plan = recovering.plan
        if yes:
            recovering.execute()
    finally:
        recovering.close()
    if SESSION.json:
        print_json({"done": yes, **plan._asdict(), "survival": plan.survival._asdict()})
        return
    _print(plan)
    if yes:
        notice(f"{plan.node} is a cluster of its own: start it with the same flags as before")
    else:
        notice("nothing was changed; to do it: --yes-lose-what-others-had")


def _print(plan: RecoveryPlan) -> None:
    print_text(f"{plan.node} goes on alone; given up for good: {', '.join(plan.given_up)}")
    for what, partitions in (
        ("in sync here, with all that was acknowledged", plan.survival.in_sync),
        ("here, but WITHOUT the newest that was acknowledged", plan.survival.behind),
        ("NOT here, and empty from now on", plan.survival.lost),
    ):
        if partitions:
            more = len(partitions) - _NAMED_MAX
            named = ", ".join(partitions[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
            print_text(f"{len(partitions)} partitions {what}: {named}")
