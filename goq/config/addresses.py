"""Addresses and host names in a configuration, checked."""

from __future__ import annotations

import re
from typing import Any

_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)


def host_and_port(value: str) -> str:
    """Return ``HOST:PORT``, checked. Raises ``ValueError``."""
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{value!r} is not HOST:PORT, as in 127.0.0.1:8080")
    return value


def host_names(value: Any, _field: str) -> tuple[str, ...]:
    """Return names of hosts in lower case; ``a,b`` and a list mean the same.

    Raises ``ValueError``.
    """
    if value == "none" or value is None:
        return ()
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError(f"{str(value)[:80]!r} is not a list; write a,b,c")
    for name in names:
        if not isinstance(name, str) or not _HOST_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a host name; write goq.example.com or *.example.com, without"
                " scheme and port"
            )
    return tuple(name.lower() for name in names)
