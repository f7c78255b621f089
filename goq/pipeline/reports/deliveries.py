"""What of the events was really handed to somebody.

A receive whose connection broke before the answer left the node is taken back: the messages are
nacked with one attempt less, as if nobody had asked. Neither half of that is a delivery or a
failure.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

_HANDED = ["message_id", "group", "lease"]


def without_undone(events: DataFrame) -> DataFrame:
    """Return the events without deliveries that were taken back, and without their taking back."""
    undone = (
        events.where("event in ('DELIVERED', 'NACKED')")
        .groupBy(*_HANDED)
        .agg(
            f.max(f.when(f.col("event") == "DELIVERED", f.col("attempt"))).alias("handed"),
            f.min(f.when(f.col("event") == "NACKED", f.col("attempt"))).alias("nacked"),
        )
        .where("nacked < handed")
        .select(*_HANDED, f.lit(True).alias("undone"))
    )
    is_of_it = f.col("event").isin("DELIVERED", "NACKED") & f.col("undone").isNotNull()
    return events.join(undone, _HANDED, "left").where(~is_of_it).drop("undone")
