"""Free ports for nodes.

:func:`free_port` draws from outside the range from which the system gives connections theirs. Test
processes that run at once draw from different parts of it, and a process gives no port again soon:
a port is free until its node listens.
:func:`reserved_port` keeps a port from other sockets for as long as a test uses it.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from random import SystemRandom

HOST = "127.0.0.1"
_WORKERS = 8
_PORTS_EACH = 2_750
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_LEAST = 10_000 + _worker * _PORTS_EACH
_MOST = _LEAST + _PORTS_EACH - 1
_given: deque[int] = deque(maxlen=500)
_chance = SystemRandom()  # not the one whose draws some tests watch


def free_port(besides: Iterable[int] = ()) -> int:
    """Return a port; those at the distances ``besides`` from it are free, too."""
    while True:
        port = _chance.randint(_LEAST, _MOST - max(besides, default=0))
        chosen = [port, *(port + distance for distance in besides)]
        if _given_lately(chosen) or not _are_free(chosen):
            continue
        _given.extend(chosen)
        return port


def free_ports(count: int) -> list[int]:
    """Return so many different ports."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that no other socket is given; a node may bind it and come back to it.

    The reservation is bound but does not listen: connections are refused while the node is away.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((HOST, 0))
        yield int(reservation.getsockname()[1])


def _given_lately(ports: Iterable[int]) -> bool:
    return not set(_given).isdisjoint(ports)


def _are_free(ports: Iterable[int]) -> bool:
    with ExitStack() as stack:
        for port in ports:
            listening = stack.enter_context(socket.socket())
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listening.bind((HOST, port))
                listening.listen()
            except OSError:
                return False
    return True
