"""The names by which requests may call a server: the defence against DNS rebinding.

A web page can have its own name resolve to the address of a node that only the browser reaches.
Its requests then are of one origin with the page, which may read the answers. They still carry the
page's name in ``Host``. A page cannot rebind an address or ``localhost``, so these are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from goq.errors import HostNotAllowed

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]*))(?::[0-9]{0,5})?", re.ASCII)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class AllowedHosts:
    """The allowed values of ``Host``; ``*.example.com`` allows each name under ``example.com``.

    ``names`` of ``None`` allows every host.
    """

    def __init__(self, names: Iterable[str] | None) -> None:
        lower = None if names is None else [name.lower() for name in names]
        self._all = lower is None
        self._names = {"localhost", *(name for name in lower or () if name[0] != "*")}
        self._suffixes = (".localhost", *(name[1:] for name in lower or () if name[0] == "*"))

    def allows(self, host: str) -> bool:
        """Return whether requests may have a ``Host``, with or without a port."""
        if self._all:
            return True
        name = _name_of(host).lower().removesuffix(".")
        return name in self._names or name.endswith(self._suffixes) or _is_address(name)

    def check(self, host: str | None, origin: str | None) -> None:
        """Refuse another site's request; a request without ``Host`` comes from no browser.

        Raises ``HostNotAllowed``.
        """
        if host is not None and not self.allows(host):
            raise HostNotAllowed(
                f"this node is not {host[:200]!r}; if it is, add the name to security.hosts, as"
                f" security.hosts={_name_of(host)[:200]}"
            )
        if not self._all and origin is not None and not _is_same(origin, host):
            raise HostNotAllowed(
                f"a page of {origin[:200]!r} may not ask this node; only pages of its own may"
            )


def _name_of(host: str) -> str:
    """Return a host without its port and brackets; nothing of what is no host."""
    match = _HOST.fullmatch(host)
    return "" if match is None else match[1] or match[2] or ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str | None) -> bool:
    """Return whether an origin, as ``http://HOST:PORT``, names the host; ``null`` does not."""
    scheme, _, named = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and named.removesuffix(port) == (host or "").lower().removesuffix(port)
