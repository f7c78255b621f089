"""The identity of a partition."""

from __future__ import annotations

from goq.broker.partition_context import PartitionId


def test_a_partition_is_written_by_its_topic_and_number() -> None:
    identity = PartitionId("orders", 3)
    assert str(identity) == f"{identity}" == "%s" % (identity,) == "orders:3"  # noqa: UP031 - as in log records
