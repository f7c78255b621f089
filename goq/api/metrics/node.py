"""``/metrics`` for operators, in Prometheus text format. See ``docs/metrics.md``.

A large node has tens of thousands of series. They are read on the event loop in slices, so values
of one answer may be some milliseconds apart; a topic that is deleted meanwhile loses the rest of
its series. The text is made in a thread, from values that nothing else changes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from goq import __version__
from goq.api.metrics.cluster import ClusterMetrics
from goq.api.metrics.groups import GroupMetrics
from goq.api.metrics.sources import MetricSources
from goq.broker.runtime.metrics import TopicCounts
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.histogram import Histogram
from goq.model import DEAD_LETTERS_SUFFIX
from goq.storage.disk_space import SpaceState

_TOPIC_COUNTERS = {
    "published_messages": "Messages stored",
    "published_bytes": "Bytes of frames stored",
    "duplicate_frames": "Frames that a producer sent again and that were stored before",
    "delivered_messages": "Messages leased to consumers, repeats included",
    "acked_messages": "Messages acknowledged by a group",
    "nacked_messages": "Messages given back by a consumer",
    "expired_messages": "Messages whose lease ran out",
    "deleted_messages": "Messages that retention deleted",
    "archived_messages": "Messages archived before they were deleted",
    "retention_stalls": "Times that there was no room to archive, so that nothing was deleted",
}


class Metrics:
    """Collects all metrics on each scrape, at no cost in between."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._broker = sources.broker
        self._groups = GroupMetrics(sources.broker, sources.ready_ages)
        self._cluster = ClusterMetrics(sources.cluster, partitions=sources.has_partitions)
        self._process = ProcessCollector(registry=None)

    async def render(self) -> bytes:
        """Return the metrics as text."""
        with _collections_paused():
            return await self._render()

    async def _render(self) -> bytes:
        found = list(self._process.collect())
        topics = sorted(self._broker.topics.values(), key=lambda topic: topic.name)
        found += await self._groups.collect(topics)
        time_slice = TimeSlice()
        for metric in self._collect(topics):
            if metric is not None:
                found.append(metric)
            if time_slice.is_over:
                await time_slice.next()
        return await asyncio.to_thread(_text_of, found)

    def _collect(self, topics: list[Topic]) -> Iterator[Metric | None]:
        """Yield every metric, and ``None`` wherever the event loop may do other work."""
        yield from self._topic_counters(topics)
        if self._sources.has_partitions:
            yield from self._partition_gauges(topics)
        yield self._archive_gauge(topics)
        yield from self._archive_store()
        yield from self._doubts(topics)
        yield self._dead_letters(topics)
        yield from self._cluster.collect()
        yield from self._disk()
        yield _build_info()
        yield from self._http_metrics()
        yield from self._principals()
        yield _histogram(
            "goq_commit_seconds",
            "Time to write and sync one group commit",
            {(): self._broker.write_seconds},
            (),
        )

    def _is_here(self, topic: Topic) -> bool:
        return self._broker.topics.get(topic.name) is topic

    def _topic_counters(self, topics: list[Topic]) -> Iterator[Metric]:
        assert set(_TOPIC_COUNTERS) == set(TopicCounts.__struct_fields__)
        for name, text in _TOPIC_COUNTERS.items():
            counter = CounterMetricFamily(f"goq_{name}", text, labels=["topic"])
            for topic in topics:
                counter.add_metric([topic.name], getattr(topic.stats, name))
            yield counter

    def _partition_gauges(self, topics: list[Topic]) -> Iterator[Metric | None]:
        labels = ["topic", "partition"]
        online = GaugeMetricFamily("goq_partition_online", "1 if it can be used", labels=labels)
        end = GaugeMetricFamily("goq_partition_end_offset", "The next offset", labels=labels)
        size = GaugeMetricFamily("goq_partition_bytes", "Bytes of messages kept", labels=labels)
        damaged = GaugeMetricFamily(
            "goq_partition_damaged_messages", "Messages that failed their check", labels=labels
        )
        for topic in topics:
            for partition in list(topic.partitions):
                yield None
                if not self._is_here(topic):
                    break
                values = [topic.name, str(partition.identity.number)]
                online.add_metric(values, partition.is_online)
                end.add_metric(values, partition.log_end_offset)
                size.add_metric(values, partition.size_bytes)
                lost = sum(d.end_offset - d.start_offset for d in partition.message_damage)
                damaged.add_metric(values, lost)
            for number in topic.partitions.offline.keys() - set(topic.partitions.numbers()):
                online.add_metric([topic.name, str(number)], False)
        yield from (online, end, size, damaged)

    def _doubts(self, topics: list[Topic]) -> Iterator[Metric]:
        labels = ["topic", "state"]
        doubt = GaugeMetricFamily("goq_topic_in_doubt", "Waits for a decision", labels=labels)
        for topic in topics:
            if topic.doubt is not None:
                doubt.add_metric([topic.name, str(topic.doubt.kind)], 1)
        yield doubt
        capacity = self._broker.capacity
        yield GaugeMetricFamily(
            "goq_state_bytes",
            "Memory for partitions and groups, by count",
            value=capacity.used_bytes,
        )
        yield GaugeMetricFamily(
            "goq_state_bytes_max", "The bound of that memory", value=capacity.bytes_max
        )
        cached = GaugeMetricFamily("goq_cache_bytes", "Memory of the caches", labels=["cache"])
        for name, size_bytes in self._broker.cached_bytes().items():
            cached.add_metric([name], size_bytes)
        yield cached
        count = len(self._broker.metadata.problems)
        yield GaugeMetricFamily("goq_metadata_problems", "Damage of node.db", value=count)

    def _archive_gauge(self, topics: list[Topic]) -> Metric:
        size = GaugeMetricFamily("goq_archive_bytes", "Bytes of the archive", labels=["topic"])
        for topic in topics:
            archived = self._broker.archive.segments.topic_totals(topic.folder)
            size.add_metric([topic.name], archived.bytes if archived else 0)
        return size

    def _archive_store(self) -> Iterator[Metric]:
        archive = self._broker.archive
        if archive.uploader.url is None and not archive.store_cache.was_used:
            return
        yield GaugeMetricFamily(
            "goq_archive_waiting_bytes",
            "Bytes of archived segments that are not in the object store yet",
            value=archive.uploader.waiting_bytes,
        )
        yield GaugeMetricFamily(
            "goq_archive_cached_bytes",
            "Bytes of objects that are on the disk because they were read",
            value=archive.store_cache.size_bytes,
        )
        yield CounterMetricFamily(
            "goq_archive_store_failures",
            "Times that the object store of the archive did not do what was asked",
            value=archive.uploader.failures + archive.store_cache.failures,
        )
        yield CounterMetricFamily(
            "goq_archive_store_damaged",
            "Objects of the archive with other bytes than were stored",
            value=archive.store_cache.damaged,
        )

    def _dead_letters(self, topics: list[Topic]) -> Metric:
        """Count what waits in dead-letter topics for a decision, by the topic that it is from."""
        dead = GaugeMetricFamily(
            "goq_dead_letters", "Dead letters neither redriven nor purged", labels=["topic"]
        )
        for topic in topics:
            if topic.name.endswith(DEAD_LETTERS_SUFFIX):
                count = sum(each.marks.uncancelled_count() for each in topic.partitions.here())
                dead.add_metric([topic.name.removesuffix(DEAD_LETTERS_SUFFIX)], count)
        return dead

    def _disk(self) -> Iterator[Metric]:
        space = self._sources.space
        if space is not None:
            free, is_full = space.free_bytes, space.state is SpaceState.FULL
            yield GaugeMetricFamily("goq_disk_free_bytes", "Room on the disk", value=free)
            yield GaugeMetricFamily("goq_disk_full", "1 while the disk is full", value=is_full)

    def _principals(self) -> Iterator[Metric]:
        labels = ["principal", "name"]
        requests = CounterMetricFamily(
            "goq_principal_requests", "Requests of a token to this node", labels=labels
        )
        published = CounterMetricFamily(
            "goq_principal_publish_bytes", "Bytes of its publishes", labels=labels
        )
        refused = CounterMetricFamily(
            "goq_quota_refusals", "Requests that a quota refused", labels=[*labels, "quota"]
        )
        for principal, usage in sorted(self._sources.quotas.usages.items()):
            requests.add_metric([principal, usage.name], usage.requests)
            published.add_metric([principal, usage.name], usage.publish_bytes)
            for quota, count in sorted(usage.refused.items()):
                refused.add_metric([principal, usage.name, str(quota)], count)
        yield from (requests, published, refused)

    def _http_metrics(self) -> Iterator[Metric]:
        http, server = self._sources.http, self._sources.server
        requests = CounterMetricFamily(
            "goq_http_requests", "Requests answered", labels=["method", "route", "status"]
        )
        for (method, route, status), count in sorted(http.requests.items()):
            requests.add_metric([method, route, str(status)], count)
        yield requests
        yield _histogram(
            "goq_http_request_seconds",
            "Time from a request's last byte to its answer, waiting included",
            http.seconds,
            ("method", "route"),
        )
        assert server is not None
        stalls = GaugeMetricFamily(
            "goq_loop_stall_seconds",
            "Longest hold of the event loop in the last one to two minutes",
            labels=["method", "route"],
        )
        for holder, seconds in sorted(server.longest_holds().items()):
            stalls.add_metric(holder, seconds)
        yield stalls
        yield _histogram(
            "goq_loop_hold_seconds",
            "Holds of the event loop of a millisecond and more, by cause",
            {(cause,): holds for cause, holds in server.holds().items()},
            ("cause",),
        )
        yield from self._deadlines()
        yield GaugeMetricFamily(
            "goq_http_connections", "Open connections", value=server.connection_count
        )
        yield GaugeMetricFamily(
            "goq_http_bodies_bytes",
            "Request bodies in memory",
            value=server.bodies_in_flight_bytes,
        )
        yield GaugeMetricFamily(
            "goq_http_unsent_bytes",
            "Answers in memory that clients take slowly or not at all",
            value=server.unsent_bytes,
        )

    def _deadlines(self) -> Iterator[Metric]:
        """Yield what needs an operator in time: the held clock, backups, certificates."""
        yield GaugeMetricFamily(
            "goq_retention_clock_held",
            "1 while the clock has jumped ahead and retention does not count with it",
            value=int(self._broker.retention_manager.clock.is_held),
        )
        backups, certificate = self._sources.backups, self._sources.certificate
        yield GaugeMetricFamily(
            "goq_backup_age_seconds",
            "Seconds since the newest backup began",
            value=None if backups is None else backups.age_s,
        )
        yield CounterMetricFamily(
            "goq_backup_failures",
            "Backups that failed, and removals of old ones",
            value=None if backups is None else backups.failures,
        )
        yield GaugeMetricFamily(
            "goq_tls_certificate_expiry_seconds",
            "Seconds until the certificate ends",
            value=None if certificate is None else certificate.left_s,
        )
        end_s = self._sources.cluster_certificate_end_s
        yield GaugeMetricFamily(
            "goq_cluster_certificate_expiry_seconds",
            "Seconds until the certificate of the metadata log's transport ends",
            value=None if end_s is None else end_s - time.time(),
        )


def _text_of(found: list[Metric]) -> bytes:
    """Return metrics as text, and drop them.

    Those of 10,000 groups are a quarter of a million objects. The event loop would free them all at
    once; here it is one metric at a time.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(found))
    text = generate_latest(registry)
    while found:
        found.pop()
    return text


class _Collected(Collector):
    """Metrics that were collected before."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


@contextmanager
def _collections_paused() -> Iterator[None]:
    """Look for no reference cycles meanwhile: series are many objects, and make none.

    Those of 10,000 groups, all alive at the end, would be walked again and again. Of scrapes that
    overlap, the one that paused goes on again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _build_info() -> Metric:
    info = GaugeMetricFamily("goq_build_info", "What runs here", labels=["version", "python"])
    info.add_metric([__version__, sys.version.split()[0]], 1)
    return info


def _histogram(
    name: str,
    text: str,
    histograms: Mapping[tuple[()], Histogram]
    | Mapping[tuple[str], Histogram]
    | Mapping[tuple[str, str], Histogram],
    labels: tuple[str, ...],
) -> Metric:
    metric = HistogramMetricFamily(name, text, labels=labels)
    for values, histogram in histograms.items():
        metric.add_metric(values, histogram.cumulative(), histogram.sum_s)
    return metric
