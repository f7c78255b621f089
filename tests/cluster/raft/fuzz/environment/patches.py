"""The one place that replaces what the library takes from the machine: clock, chance, files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.raft.fuzz.environment.world import World
from tests.support.cluster.raft.library import simulated_library


@contextmanager
def library_in(world: World) -> Iterator[None]:
    """Let the library live in a world while the block runs, and on the machine again after it."""

    def monotonic() -> float:
        assert world.host is not None
        return world.host.monotonic()

    logging.disable()
    try:
        with simulated_library(monotonic, world.stream("library")):
            yield
    finally:
        logging.disable(logging.NOTSET)
