"""``goq serve``."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from goq_cli.output.output import drop_output, parse_settings, print_json
from goq_cli.session import SESSION

_log = logging.getLogger("goq.serve")


def command(
    config: Annotated[Path | None, typer.Option(help="YAML; see config.example.yaml.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The data folder.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    node_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the node, for ever.")
    ] = None,
    cluster_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="In a cluster: the address for other nodes."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(metavar="ID=HOST:PORT,…", help="All initial nodes, this one included."),
    ] = None,
    join: Annotated[
        str | None, typer.Option(metavar="URL", help="Join the cluster of the node at URL.")
    ] = None,
    cluster_secret_file: Annotated[
        Path | None,
        typer.Option(help="Authenticates nodes: (umask 077; openssl rand -hex 32 > FILE)"),
    ] = None,
    cluster_tls_cert_file: Annotated[
        Path | None,
        typer.Option(help="With the next two: encrypts metadata. PEM, of this node."),
    ] = None,
    cluster_tls_key_file: Annotated[
        Path | None, typer.Option(help="The certificate's key.")
    ] = None,
    cluster_tls_ca_file: Annotated[
        Path | None, typer.Option(help="The authority of all certificates.")
    ] = None,
    sqs_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve AWS SDKs too, as SQS does."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="debug|info|warning|error", help="Default: info.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="text|json", help="Of the log on stderr. Default: text.")
    ] = None,
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any setting, by dotted name.")
    ] = [],
) -> None:
    """Run a node until SIGTERM or Ctrl-C.

    Settings come from the file, the environment (GOQ_BROKER__DATA_DIR) and flags; later ones win.
    Prints one line when ready.
    """
    flags: dict[str, object] = dict(parse_settings(settings))
    given = {
        "broker.data_dir": data_dir,
        "broker.listen": listen,
        "broker.node_id": node_id,
        "sqs.listen": sqs_listen,
        "logging.level": log_level,
        "logging.format": log_format,
        "cluster.listen": cluster_listen,
        "cluster.peers": peers,
        "cluster.join": join,
        "cluster.secret_file": cluster_secret_file,
        "cluster.tls.cert_file": cluster_tls_cert_file,
        "cluster.tls.key_file": cluster_tls_key_file,
        "cluster.tls.ca_file": cluster_tls_ca_file,
    }
    flags |= {name: value for name, value in given.items() if value is not None}

    # numpy's library for linear algebra, which a node does none of, starts a thread for each core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()  # the imports below make no garbage; run() enables it once topics are open
    try:
        _serve(config, flags)
    finally:
        gc.enable()


def _serve(config: Path | None, flags: Mapping[str, object]) -> None:
    from goq import __version__
    from goq.config.node import Config
    from goq.config.sources import load_config
    from goq.process.run import run

    def ready(loaded: Config, url: str) -> None:
        where = loaded.broker.data_dir.resolve()
        try:
            if SESSION.json:
                print_json({"url": url, "data_dir": str(where), "version": __version__})
            else:
                sys.stdout.write(f"goq {__version__} ready on {url}, data in {where}\n")
            sys.stdout.flush()
        except OSError as error:  # stdout is not read; a node has other work
            _log.warning("stdout: %s", error.strerror)
            drop_output()

    run(lambda: load_config(config, flags), ready)
