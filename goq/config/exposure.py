"""Checks before a node starts: which machines reach it, and which users may read its secrets."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from goq.access.admin_token import FILE_NAME, check_private
from goq.config.node import Config
from goq.errors import UsageError


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(config: Config) -> None:
    """Raise ``UsageError`` for a node that other machines reach and that asks for no tokens."""
    if config.asks_for_tokens or config.security.allow_open:
        return
    addresses = {"broker": (config.broker.host, config.broker.listen)}
    if config.sqs.listen is not None:
        addresses["sqs"] = (config.sqs.address[0], config.sqs.listen)
    open_to_others = [s for s, (host, _) in addresses.items() if not is_loopback(host)]
    if not open_to_others:
        return
    section = open_to_others[0]
    data_dir = config.broker.data_dir
    raise UsageError(
        f"anyone who reaches {addresses[section][1]} could read and delete everything. Ask for"
        " tokens: security.auth=tokens, after goq token create admin --allow 'admin:*'"
        f" --data-dir {data_dir}, or with {data_dir / FILE_NAME}, which the first start then"
        f" writes. Or serve this machine alone: {section}.listen=127.0.0.1:PORT. Or take the risk:"
        " security.allow_open=true",
        field=f"{section}.listen",
    )


def check_secret_files(config: Config) -> None:
    """Raise ``UsageError`` if other users may read a file with a secret of the node.

    A missing file is an error where it is read.
    """
    paths: list[Path | None] = [config.cluster.secret_file]
    paths += [tls.key_file for tls in (config.cluster.tls, config.security.tls) if tls is not None]
    for path in paths:
        try:
            if path is not None:
                check_private(path)
        except OSError:
            continue
