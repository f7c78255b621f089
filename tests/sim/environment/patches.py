"""The one place that replaces what the product takes from the machine: threads, chance, SQLite."""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from goq import clock, limits
from goq.broker import broker
from goq.broker.partition import loader
from goq.broker.partition.loader import messages_config
from goq.broker.retention import archiver as archive
from goq.broker.retention import compaction_manager as compacting
from goq.broker.runtime import background
from goq.cluster.raft import driver
from goq.cluster.raft.state_machine import sqlite as sqlite_machine
from goq.cluster.raft.transport import link
from goq.config.topic import TopicSettings
from goq.storage.log.log import LogConfig
from tests.sim.environment.databases import SIMULATED
from tests.sim.environment.network import Network, SimulatedConnections
from tests.sim.environment.world import World
from tests.sim.process import Process
from tests.support.cluster.raft.library import simulated_library
from tests.support.cluster.replication.loop import HOME, SimExecutor

SMALL = {
    "EVENT_SEGMENT_BYTES": 2000,
    "SNAPSHOT_EVENTS_MIN": 10,
    "REPLICA_LAG_MS_MAX": 1500,
    "PUSH_IN_FLIGHT_BYTES_MAX": 6000,
    "SCRUB_PAUSE_S": 1.0,
    "DISK_RECOVERED_BYTES": 4096,
    "DISK_CHECK_PAUSE_S": 0.3,
    "PREFERRED_LEADER_DELAY_MS": 1500,
    "RAFT_JOURNAL_BYTES": 6000,
    "JOURNAL_ENTRY_BYTES_MAX": 3000,
    "JOURNAL_INLINE_BYTES_MAX": 600,
    "JOURNAL_RECORD_BYTES_MAX": 7000,
    "JOURNAL_PIECE_BYTES_MIN": 8000,
    "JOURNAL_PIECE_BYTES_MAX": 16000,
    "JOURNAL_PIECES_MAX": 3,
}
"""Limits that are made small, so that a short life reaches them."""


SEGMENT_BYTES = 4096  # less than may be set on a topic


def _small_segments(settings: TopicSettings) -> LogConfig:
    return messages_config(replace(settings, segment_bytes=SEGMENT_BYTES))


def _threads(*_arguments: Any, **_options: Any) -> SimExecutor:
    home = HOME.get()
    assert isinstance(home, Process)
    return home.executor(home.random)


@contextmanager
def product_in(world: World, network: Network) -> Iterator[None]:
    """Let the product live in a world while the block runs.

    A node in another thread of this process would draw from the same chance.
    """
    others = [thread.name for thread in threading.enumerate() if thread.name == "goq-node"]
    assert not others, "a node of another test still runs"
    chance = world.stream("product")
    logging.disable()
    with ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)

        def put(target: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(target, name, value))

        for module in (archive, background, broker, compacting):
            put(module, "ThreadPoolExecutor", _threads)
        drawn = SimpleNamespace(Random=lambda: chance, getrandbits=chance.getrandbits)
        put(broker, "random", drawn)
        put(loader, "random", drawn)
        put(secrets, "randbits", chance.getrandbits)
        put(secrets, "token_bytes", chance.randbytes)
        put(secrets, "token_hex", lambda size: chance.randbytes(size).hex())
        put(link, "os", SimpleNamespace(urandom=chance.randbytes))
        put(sqlite_machine, "sqlite3", SIMULATED)
        stack.enter_context(patch.object(SimulatedConnections, "network", network, create=True))
        stack.enter_context(simulated_library(world.loop.time, chance))
        put(loader, "messages_config", _small_segments)
        put(clock, "SLICE_S", math.inf)  # else a life would depend on the machine's time
        put(driver, "monotonic", lambda: 0.0)  # so would it: the event loop seems to stand still
        for name, value in SMALL.items():
            put(limits, name, value)
        put(limits, "SCRUB_PAUSE_S", SMALL["SCRUB_PAUSE_S"] * world.pace)
        yield
