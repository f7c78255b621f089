"""The one place that replaces what the library takes from the machine: clock, chance, files."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pysyncobj.journal
import pysyncobj.node
import pysyncobj.syncobj

from tests.cluster.raft.fuzz.environment.world import World


class NoSockets:
    """A poller with nothing to wait for."""

    def poll(self, timeout: float) -> None:
        assert timeout == 0.0

    def subscribe(self, descriptor: int, callback: object, events: int) -> None:
        raise AssertionError("nothing in the simulation has a socket")


def _same_in_every_process(node: pysyncobj.node.Node) -> int:
    return zlib.crc32(node.id.encode())


@contextmanager
def library_in(world: World) -> Iterator[None]:
    """Let the library live in a world while the block runs, and on the machine again after it."""

    def monotonic() -> float:
        assert world.host is not None
        return world.host.monotonic()

    logging.disable()
    library = pysyncobj.syncobj
    try:
        with (
            patch.object(library, "monotonicTime", monotonic),
            patch.object(library, "random", world.stream("library")),
            patch.object(library, "createPoller", lambda _kind: NoSockets()),
            patch.object(library, "PIPE_NOTIFIER_ENABLED", False),
            patch.object(pysyncobj.node.Node, "__hash__", _same_in_every_process),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)
