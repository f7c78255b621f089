"""Replacements for what the Raft library takes from the machine, for simulations."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pysyncobj.node
import pysyncobj.syncobj


class NoSockets:
    """A poller without descriptors: a simulation has no sockets."""

    def poll(self, timeout: float) -> None:
        assert timeout == 0.0

    def subscribe(self, descriptor: int, callback: object, events: int) -> None:
        raise AssertionError("nothing in the simulation has a socket")


@contextmanager
def simulated_library(monotonic: Callable[[], float], random: Any) -> Iterator[None]:
    """Replace the library's clock, randomness and poller; nodes hash alike in every process."""
    library = pysyncobj.syncobj
    with ExitStack() as stack:
        for name, value in {
            "monotonicTime": monotonic,
            "random": random,
            "createPoller": lambda _kind: NoSockets(),
            "PIPE_NOTIFIER_ENABLED": False,
        }.items():
            stack.enter_context(patch.object(library, name, value))
        stack.enter_context(patch.object(pysyncobj.node.Node, "__hash__", _same_in_every_process))
        yield


def _same_in_every_process(node: pysyncobj.node.Node) -> int:
    return zlib.crc32(node.id.encode())
