"""``goq serve``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from goq_cli.output.output import parse_settings, print_json
from goq_cli.session import SESSION


def command(
    config: Annotated[Path | None, typer.Option(help="YAML; see config.example.yaml.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data is kept.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    node_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="What this node is called, for ever.")
    ] = None,
    cluster_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Be one of a cluster: listen here for the others."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="ID=HOST:PORT,…", help="All of the first nodes of a cluster, this one too."
        ),
    ] = None,
    join: Annotated[
        str | None, typer.Option(metavar="URL", help="Join the cluster of the node there.")
    ] = None,
    cluster_secret_file: Annotated[
        Path | None,
        typer.Option(help="By what nodes prove themselves: openssl rand -hex 32 > FILE"),
    ] = None,
    cluster_tls_cert_file: Annotated[
        Path | None,
        typer.Option(help="With the next two: encrypt what the nodes agree on. PEM, of this node."),
    ] = None,
    cluster_tls_key_file: Annotated[Path | None, typer.Option(help="Of the certificate.")] = None,
    cluster_tls_ca_file: Annotated[
        Path | None, typer.Option(help="The authority of all nodes' certificates.")
    ] = None,
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any setting, by dotted name.")
    ] = [],  # noqa: B006 - typer reads the default, nothing writes to it
) -> None:
    """Run a node until SIGTERM or Ctrl-C.

    Settings come from the file, the environment (GOQ_BROKER__DATA_DIR) and flags; later ones win.
    Prints one line when ready.
    """
    import logging

    from goq import __version__
    from goq.config.node import load_config
    from goq.node import run

    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    flags: dict[str, object] = dict(parse_settings(settings))
    given = {
        "broker.data_dir": data_dir,
        "broker.listen": listen,
        "broker.node_id": node_id,
        "cluster.listen": cluster_listen,
        "cluster.peers": peers,
        "cluster.join": join,
        "cluster.secret_file": cluster_secret_file,
        "cluster.tls.cert_file": cluster_tls_cert_file,
        "cluster.tls.key_file": cluster_tls_key_file,
        "cluster.tls.ca_file": cluster_tls_ca_file,
    }
    flags |= {name: value for name, value in given.items() if value is not None}
    loaded = load_config(config, flags)

    def ready(url: str) -> None:
        where = loaded.broker.data_dir.resolve()
        if SESSION.json:
            print_json({"url": url, "data_dir": str(where), "version": __version__})
        else:
            sys.stdout.write(f"goq {__version__} ready on {url}, data in {where}\n")
        sys.stdout.flush()

    run(loaded, ready)
