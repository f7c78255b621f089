"""The part of the tables that a report is about: a span of time, one group."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


class ReportSelection(NamedTuple):
    """The messages appended from ``since_us`` up to ``until_us``, and what became of them.

    That includes what happened after ``until_us``. Times are in microseconds since 1970; None is no
    bound. With ``group`` only its events count, beside those that concern all groups.
    """

    since_us: int | None = None
    until_us: int | None = None
    group: str | None = None

    def messages(self, messages: DataFrame) -> DataFrame:
        """Return the messages of the span."""
        if self.since_us is not None:
            messages = messages.where(f.unix_micros("timestamp") >= self.since_us)
        if self.until_us is not None:
            messages = messages.where(f.unix_micros("timestamp") < self.until_us)
        return messages

    def events(self, events: DataFrame, messages: DataFrame) -> DataFrame:
        """Return the events of the group, and of these messages if there is a span.

        A reset, and a deletion by retention, is about messages before the one that it names: those
        since the span began stay.
        """
        if self.group is not None:
            events = events.where((f.col("group") == self.group) | f.col("group").isNull())
        if self.since_us is None and self.until_us is None:
            return events
        is_about_earlier = f.col("event").isin("RESET", "TRIMMED")
        earlier = events.where(is_about_earlier)
        if self.since_us is not None:
            earlier = earlier.where(f.unix_micros("time") >= self.since_us)
        others = events.where(~is_about_earlier)
        return others.join(messages.select("message_id"), "message_id", "left_semi").union(
            earlier.select(others.columns)
        )

    def groups(self, groups: DataFrame) -> DataFrame:
        """Return the rows of the group."""
        return groups if self.group is None else groups.where(f.col("group") == self.group)
