"""Batches of ten by boto3 at any SQS endpoint of this machine: trips a second, CPU of its server.

python -m bench.sqs_batches http://127.0.0.1:9324 PID

A trip sends, receives and deletes ten messages of 1,000 B. Clients are processes, so that their
own CPU, more than that of most servers, holds up nobody else.
"""

from __future__ import annotations

import argparse
import os
import time
from multiprocessing import get_context
from pathlib import Path

BATCH = 10
BODY = "x" * 1000
_WARM = 20


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _trips(work: tuple[str, int]) -> float:
    """Make trips at an endpoint; return the client's CPU seconds."""
    import boto3

    url, count = work
    keys = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}
    sqs = boto3.client("sqs", endpoint_url=url, region_name="us-east-1", **keys)
    queue = {"QueueUrl": sqs.create_queue(QueueName="batches")["QueueUrl"]}
    sent = [{"Id": str(number), "MessageBody": BODY} for number in range(BATCH)]
    began_s = time.process_time()
    for _ in range(count):
        sqs.send_message_batch(**queue, Entries=sent)
        answer = sqs.receive_message(**queue, MaxNumberOfMessages=BATCH)
        got = [
            {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
            for number, each in enumerate(answer["Messages"])
        ]
        sqs.delete_message_batch(**queue, Entries=got)
    return time.process_time() - began_s


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.sqs_batches", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("pid", type=int, help="of the server")
    parser.add_argument("--trips", type=int, default=300, help="of each client")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    asked = parser.parse_args()
    for clients in asked.clients:
        with get_context("spawn").Pool(clients) as pool:
            pool.map(_trips, [(asked.url, _WARM)] * clients, chunksize=1)
            before_s, began = cpu_s(asked.pid), time.perf_counter()
            ours_s = sum(pool.map(_trips, [(asked.url, asked.trips)] * clients, chunksize=1))
            took_s, used_s = time.perf_counter() - began, cpu_s(asked.pid) - before_s
        trips = clients * asked.trips
        server_ms, client_ms = 1000 * used_s / trips, 1000 * ours_s / trips
        print(
            f"{clients} clients: {trips / took_s:.0f} trips/s; a trip: "
            f"{server_ms:.2f} ms of the server, {client_ms:.2f} ms of boto3"
        )


if __name__ == "__main__":
    main()
