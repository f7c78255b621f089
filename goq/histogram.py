"""Histograms of durations, as Prometheus has them."""

from __future__ import annotations

from bisect import bisect_left

BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Histogram:
    """A histogram of durations, by upper bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each bound with the cumulative count, for Prometheus."""
        total, pairs = 0, []
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            pairs.append((bound, float(total)))
        return pairs
