"""``goq bench``."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Annotated

import typer

from goq.units import parse_size_bytes, round_size_bytes
from goq_cli.output.output import notice, print_json
from goq_cli.output.table import print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import Client

_GROUP = "bench"


def command(
    messages: Annotated[int, typer.Option(metavar="N", min=1, help="How many.")] = 100_000,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Of each value.")] = "1KiB",
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Messages a request.")] = 1000,
    singles: Annotated[
        int, typer.Option(metavar="N", min=0, help="Messages published one at a time.")
    ] = 500,
) -> None:
    """Measure a node from one client: publish, then receive and ack, in a temporary topic."""
    value = secrets.token_bytes(parse_size_bytes(size, field="--size"))
    topic = f"goq-bench-{secrets.token_hex(4)}"
    with SESSION.client() as client:
        client.create_topic(topic)
        notice(f"measuring in topic {topic}")
        try:
            results = [
                (
                    "publish, one at a time",
                    singles,
                    _publish_singles(client, topic, value, singles),
                ),
                (
                    f"publish, batches of {batch}",
                    messages,
                    _publish_batches(client, topic, value, messages, batch),
                ),
                (
                    f"receive and ack, batches of {batch}",
                    messages + singles,
                    _consume(client, topic, messages + singles, batch),
                ),
            ]
        finally:
            client.delete_topic(topic)
    _print(results, len(value))


def _publish_singles(client: Client, topic: str, value: bytes, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        client.publish(topic, value)
    return time.perf_counter() - began


def _publish_batches(client: Client, topic: str, value: bytes, count: int, batch: int) -> float:
    values = [value] * batch
    began = time.perf_counter()
    with client.producer(topic, batch=batch, batch_bytes="8MiB") as producer:
        for start in range(0, count, batch):
            producer.send_values(values[: min(batch, count - start)])
    return time.perf_counter() - began


def _consume(client: Client, topic: str, count: int, batch: int) -> float:
    began = time.perf_counter()
    while count > 0:
        received = client.receive_batch(topic, _GROUP, max_messages=batch, wait="5s")
        count -= received.ack().done
    return time.perf_counter() - began


def _print(results: list[tuple[str, int, float]], size_bytes: int) -> None:
    rows = [
        {
            "work": work,
            "messages": count,
            "seconds": round(seconds, 3),
            "messages_per_second": round(count / seconds) if seconds else 0,
            "bytes_per_second": round(count * size_bytes / seconds) if seconds else 0,
        }
        for work, count, seconds in results
        if count
    ]
    if SESSION.json:
        print_json({"results": rows})
        return
    cells = [
        (
            row["work"],
            f"{row['messages']:,}",
            row["seconds"],
            f"{row['messages_per_second']:,}",
            round_size_bytes(int(str(row["bytes_per_second"]))),
        )
        for row in rows
    ]
    print_table(("work", "messages", "seconds", "messages/s", "bytes/s"), cells)
