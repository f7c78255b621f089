"""``goq doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from goq_cli.output import print_answer
from goq_cli.session import SESSION


def command(
    data_dir: Annotated[
        Path | None, typer.Option(help="Look at this folder instead of a node.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="With --data-dir: check every byte of every log.")
    ] = False,
) -> None:
    """Check a node, or a data folder; exit 1 if anything is wrong.

    A folder can be checked while a node uses it: nothing is written.
    """
    from goq.errors import UsageError

    if data_dir is None:
        if verify:
            raise UsageError("--verify reads a folder: give its --data-dir")
        healthy = _check_node()
    else:
        healthy = _check_folder(data_dir, verify)
    if not healthy:
        raise typer.Exit(1)


def _check_node() -> bool:
    with SESSION.client() as client:
        health, version = client.health(), client.version()
    troubles = [f"offline: {name}" for name in health.get("offline", ())]
    troubles += [f"damaged: {name}" for name in health.get("damaged", ())]
    text = "\n".join(
        [f"node {version['node']}, goq {version['version']}: {health['status']}", *troubles]
    )
    print_answer({**version, **health}, text)
    return health["status"] == "ok"


def _check_folder(data_dir: Path, verify: bool) -> bool:
    raise NotImplementedError
