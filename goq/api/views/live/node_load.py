"""The load of this node: what its process uses, its disk, and how long requests take."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from goq import __version__
from goq.api.router import RequestStats
from goq.api.schemas.live import LiveLatencyOut, LiveNodeOut
from goq.broker.broker import Broker
from goq.histogram import Histogram
from goq.storage.disk_space import DiskSpace, SpaceState
from goq.units import format_time_us

_KINDS: Final = {
    "publish": (("POST", "/v1/topics/{topic}/messages"),),
    "receive": (("POST", "/v1/topics/{topic}/groups/{group}/receive"),),
    "settle": tuple(
        ("POST", f"/v1/topics/{{topic}}/groups/{{group}}/{verb}") for verb in ("ack", "nack")
    ),
}
_STATM: Final = Path("/proc/self/statm")
_STARTED_US: Final = time.time_ns() // 1000


class NodeLoadReader:
    """Reads the load when it is asked for."""

    def __init__(
        self,
        broker: Broker,
        node_id: str,
        stats: RequestStats,
        connections: Callable[[], int],
        space: DiskSpace | None,
    ) -> None:
        self.node_id = node_id
        self._broker = broker
        self._stats = stats
        self._connections = connections
        self._space = space

    def read(self) -> LiveNodeOut:
        """Return the load now."""
        return LiveNodeOut(
            self.node_id,
            version=__version__,
            python=sys.version.split()[0],
            started=format_time_us(_STARTED_US),
            cpu_s=round(time.process_time(), 3),
            rss_bytes=_resident_bytes(),
            disk_free_bytes=None if self._space is None else self._space.free_bytes,
            disk=_disk(self._space),
            connections=self._connections(),
            requests=sum(self._stats.requests.values()),
            partitions=sum(len(each.partitions.numbers()) for each in self._broker.topics.values()),
            commit=_latency([self._broker.write_seconds]),
            publish=_latency(self._histograms("publish")),
            receive=_latency(self._histograms("receive")),
            settle=_latency(self._histograms("settle")),
        )

    def _histograms(self, kind: str) -> Iterator[Histogram]:
        seconds = self._stats.seconds
        return (seconds[key] for key in _KINDS[kind] if key in seconds)


def _resident_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _disk(space: DiskSpace | None) -> str:
    return "" if space is None or space.state is SpaceState.OK else str(space.state)


def _latency(histograms: Iterable[Histogram]) -> LiveLatencyOut:
    total = Histogram()
    for each in histograms:
        total.counts = [a + b for a, b in zip(total.counts, each.counts, strict=True)]
        total.sum_s += each.sum_s
    return LiveLatencyOut(total.counts, round(total.sum_s, 6))
