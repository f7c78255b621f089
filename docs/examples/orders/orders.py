"""Orders through goq and Spark, from the first message to a report and a topic of results.

Run a node with ``goq serve``, then ``python orders.py FOLDER``; FOLDER keeps the export and the
place of the stream. Run it again: it adds orders, and exports and streams only what is new.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from goq import Client
from goq.errors import TopicExists

SERVER = os.environ.get("GOQ_SERVER", "http://127.0.0.1:8080")
ORDERS = 300
LARGE = 400
NO_SUCH_CUSTOMER = "customer-13"


def create_topics(client: Client) -> None:
    """Make the topics, unless they are there."""
    for topic in ("orders", "large-orders"):
        try:
            client.create_topic(topic, partitions=3)
        except TopicExists:
            pass


def place_orders(client: Client, luck: random.Random) -> None:
    """Publish orders: those of a customer have one key, so they stay in order."""
    with client.producer("orders") as producer:
        for number in range(ORDERS):
            customer = f"customer-{luck.randrange(20)}"
            order = {"number": number, "customer": customer, "total": luck.randrange(10, 500)}
            urgent = luck.random() < 0.1
            producer.send(
                json.dumps(order).encode(), key=customer, priority="high" if urgent else "normal"
            )


def bill(client: Client, luck: random.Random) -> None:
    """Work on what there is: some attempts fail, and one customer's orders always do."""
    for message in client.consume("orders", group="billing", until_empty=True):
        order = json.loads(message.value or b"")
        if order["customer"] == NO_SUCH_CUSTOMER:
            message.reject("no such customer")
        elif luck.random() < 0.05:
            message.nack(delay="0s", reason="connection reset")
        else:
            message.ack()


def export(folder: Path) -> None:
    """Write messages, and what happened to them, as Parquet; as ``goq export`` at the terminal."""
    command = ["export", "orders", "--to", str(folder / "lake"), "--server", SERVER]
    subprocess.run([sys.executable, "-m", "goq_cli", *command], check=True)


def large_orders(spark: SparkSession, folder: Path) -> None:
    """Publish what is new of the large orders to a topic of their own, each once."""
    node = {"server": SERVER}
    orders = (
        spark.readStream.format("goq")
        .options(**node, topic="orders", startingOffsets="earliest")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "customer string, total bigint")
    large = orders.withColumn("order", order).where(f.col("order.total") >= LARGE)
    query = (
        large.select("key", "value", f.lit("high").alias("priority"))
        .writeStream.format("goq")
        .options(**node, topic="large-orders", checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def failures(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Ask the export why orders were not billed at once: reasons, and how often."""
    events = spark.read.parquet(str(folder / "lake" / "events"))
    failed = events.where("event in ('NACKED', 'DEAD_LETTERED')")
    return {row.reason: row["count"] for row in failed.groupBy("reason").count().collect()}


def run(spark: SparkSession, folder: Path, seed: int) -> dict[str, int]:
    """Do all of it; return why orders failed."""
    luck = random.Random(seed)
    with Client(SERVER) as client:
        create_topics(client)
        place_orders(client, luck)
        bill(client, luck)
    export(folder)
    large_orders(spark, folder)
    return failures(spark, folder)


def main() -> None:
    """Run it on this machine."""
    from goq.pipeline.spark.session import spark_session

    folder = Path(sys.argv[1])
    for reason, times in sorted(run(spark_session(), folder, random.randrange(99)).items()):
        print(f"{times:5} {reason}")
    print(f"now: goq report retries --from {folder / 'lake'} --html retries.html")


if __name__ == "__main__":
    main()
