"""``python -m bench.pipeline.spark_reads URL TOPIC LAKE``: how fast Spark reads, two ways.

Both read every column and throw the rows away, on all cores of this machine. Each is run once
before it is measured: Spark's own start is nobody's figure.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

from pyspark.sql import DataFrame

from goq.pipeline.spark.session import spark_session

_TIMES = 3


def _rate(frame: DataFrame) -> float:
    rows, rates = frame.count(), []
    for _ in range(_TIMES + 1):
        began_s = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        rates.append(rows / (time.perf_counter() - began_s))
    return median(rates[1:])


def main() -> None:
    """Print both rates as JSON."""
    url, topic, lake = sys.argv[1:]
    spark = spark_session()
    reader = spark.read.format("goq").option("server", url).option("topic", topic)
    folder = f"{lake}/messages"
    rates = {
        "goq": _rate(reader.load()),
        "parquet": _rate(spark.read.option("basePath", folder).parquet(folder)),
    }
    print(json.dumps(rates))
    spark.stop()


if __name__ == "__main__":
    main()
