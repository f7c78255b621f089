"""Batches of ten by boto3 at any SQS endpoint of this machine: trips a second, CPU of its server.

python -m bench.node.sqs_batches http://127.0.0.1:9324 PID
python -m bench.node.sqs_batches --bare

A trip sends, receives and deletes ten messages of 1,000 B. Clients are processes, so that their
own CPU, more than that of most servers, holds up nobody else. With ``--bare`` the server looks at
the name of the operation alone and answers by bytes that are ready: no server can be faster.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

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


class _Bare(asyncio.Protocol):
    """A connection that answers each request as if there were ten messages."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.partition(b"Content-Length: ")[2].split(b"\r", 1)[0]):
            self._received = b""
            operation = head.partition(b"X-Amz-Target: AmazonSQS.")[2].split(b"\r", 1)[0]
            self._transport.write(self._answers[operation])


def _bare_answers(url: str) -> dict[bytes, bytes]:
    numbers = [str(number) for number in range(BATCH)]
    digest = hashlib.md5(BODY.encode(), usedforsecurity=False).hexdigest()
    sent = [{"Id": each, "MessageId": each, "MD5OfMessageBody": digest} for each in numbers]
    got = [
        {"MessageId": each, "ReceiptHandle": each, "MD5OfBody": digest, "Body": BODY}
        for each in numbers
    ]
    found: dict[str, object] = {
        "CreateQueue": {"QueueUrl": f"{url}/000000000000/batches"},
        "SendMessageBatch": {"Successful": sent, "Failed": []},
        "ReceiveMessage": {"Messages": got},
        "DeleteMessageBatch": {"Successful": [{"Id": each} for each in numbers], "Failed": []},
    }
    return {name.encode(): _answer(json.dumps(body).encode()) for name, body in found.items()}


def _answer(body: bytes) -> bytes:
    head = f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}"
    return b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (head.encode(), body)


def _serve_bare(tell: Connection) -> None:
    async def serve() -> None:
        answers: dict[bytes, bytes] = {}
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Bare(answers), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        answers.update(_bare_answers(url))
        tell.send(url)
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def _bare() -> Iterator[tuple[str, int]]:
    """Run the bare server; return its URL and process id."""
    spawning = get_context("spawn")
    told, tell = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_serve_bare, args=(tell,), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield told.recv(), process.pid
    finally:
        process.terminate()
        process.join()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.node.sqs_batches", description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("pid", nargs="?", type=int, help="of the server")
    parser.add_argument("--bare", action="store_true", help="at a server that does nothing")
    parser.add_argument("--trips", type=int, default=300, help="of each client")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    asked = parser.parse_args()
    if asked.bare == (asked.pid is not None):
        parser.error("give the URL and the process id of a server, or --bare")
    with _bare() if asked.bare else nullcontext((asked.url, asked.pid)) as (url, pid):
        for clients in asked.clients:
            print(_measured(url, pid, clients, asked.trips))


def _measured(url: str, pid: int, clients: int, count: int) -> str:
    with get_context("spawn").Pool(clients) as pool:
        pool.map(_trips, [(url, _WARM)] * clients, chunksize=1)
        before_s, began = cpu_s(pid), time.perf_counter()
        ours_s = sum(pool.map(_trips, [(url, count)] * clients, chunksize=1))
        took_s, used_s = time.perf_counter() - began, cpu_s(pid) - before_s
    trips = clients * count
    return (
        f"{clients} clients: {trips / took_s:.0f} trips/s; a trip: {1000 * used_s / trips:.2f} ms"
        f" of the server, {1000 * ours_s / trips:.2f} ms of boto3"
    )


if __name__ == "__main__":
    main()
