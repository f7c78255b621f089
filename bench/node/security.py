"""Rows of what security costs: tokens and HTTPS by the node's CPU time, and a noisy neighbour.

The neighbour sends all that it can, beyond its quotas. The other client's latency is measured
alone and beside it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GoqNode
from bench.messages.latency import beside, publish_by_timetable, quantiles
from goq.client import AsyncClient, Client
from goq.errors import GoqError

TOPIC = "orders"
VALUE_BYTES, LARGE_BYTES = 1000, 1024 * 1024
MESSAGES = 5_000
_WARM = 200
_QUOTAS: dict[str, str | int] = {"requests_per_s": 200, "publish_bytes_per_s": "1MB"}


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Return a certificate for the loopback that signed itself, and its key."""
    folder.mkdir(parents=True, exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=bench"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return cert, key


@contextmanager
def _node(place: Place, name: str, *more: str) -> Iterator[GoqNode]:
    folder = place.folder / name
    with GoqNode(folder, *more) as node:
        yield node
    shutil.rmtree(folder)


def _publish_cpu_us(
    node: GoqNode, connection: http.client.HTTPConnection, token: str, size: int, count: int
) -> float:
    """Return the node's CPU time of a publish of one message, in µs."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps({"messages": [{"value": "x" * size}]})

    def publish() -> None:
        connection.request("POST", f"/v1/topics/{TOPIC}/messages", body, headers)
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise RuntimeError(content)

    return _cpu_us(node, count, publish)


def _cpu_us(node: GoqNode, count: int, work: Callable[[], None]) -> float:
    for _ in range(min(_WARM, count)):
        work()
    began_s = node.cpu_s()
    for _ in range(count):
        work()
    return (node.cpu_s() - began_s) / count * 1e6


def _costs(place: Place) -> tuple[float, float, float, float, float]:
    """Return the CPU time of a small publish plain, with a token and by HTTPS; of a large one plain
    and by HTTPS."""
    count, few = place.scaled(5000, 500), place.scaled(200, 30)
    with _node(place, "plain") as node:
        connection = http.client.HTTPConnection("127.0.0.1", node.port)
        plain = _publish_cpu_us(node, connection, "", VALUE_BYTES, count)
        large = _publish_cpu_us(node, connection, "", LARGE_BYTES, few)
    with _node(place, "tokens", "--set", "security.auth=tokens") as node:
        token = (place.folder / "tokens" / "admin.token").read_text().strip()
        connection = http.client.HTTPConnection("127.0.0.1", node.port)
        with_token = _publish_cpu_us(node, connection, token, VALUE_BYTES, count)
    cert, key = _certificate(place.folder / "pair")
    files = ("--set", f"security.tls.cert_file={cert}", "--set", f"security.tls.key_file={key}")
    with _node(place, "tls", *files) as node:
        context = ssl.create_default_context(cafile=str(cert))
        secure = http.client.HTTPSConnection("127.0.0.1", node.port, context=context)
        tls = _publish_cpu_us(node, secure, "", VALUE_BYTES, count)
        large_tls = _publish_cpu_us(node, secure, "", LARGE_BYTES, few)
    return with_token, plain, tls, large_tls, large


def _be_noisy(url: str, token: str) -> None:
    """Send all that a few connections can, as a client does that knows of no quota."""

    async def send(client: AsyncClient) -> None:
        while True:
            try:
                await client.publish("noise", bytes(10_000))
            except GoqError:
                await asyncio.sleep(0)

    async def main() -> None:
        async with AsyncClient(url, token=token, retries=0) as client:
            await asyncio.gather(*(send(client) for _ in range(16)))

    asyncio.run(main())


def _victim_ms(url: str, token: str, count: int) -> list[float]:
    late_ms: list[float] = []

    async def main() -> None:
        async with AsyncClient(url, token=token) as client:
            await client.publish(TOPIC, b"first")

            async def publish(value: bytes) -> None:
                due_ns = int.from_bytes(value[:8], "little")
                await client.publish(TOPIC, value)
                late_ms.append((time.monotonic_ns() - due_ns) / 1e6)

            await publish_by_timetable(publish, count)

    asyncio.run(main())
    return late_ms


def _noisy(place: Place) -> tuple[float, float]:
    """Return the p99 of a client's publishes beside a noisy one, and alone, in ms."""
    count = place.scaled(MESSAGES, 1000)
    with _node(place, "noisy", "--set", "security.auth=tokens") as node:
        admin = (place.folder / "noisy" / "admin.token").read_text().strip()
        with Client(node.url, token=admin) as client:
            client.create_topic(TOPIC)
            client.create_topic("noise")
            noisy = client.create_token("noisy", ["publish:noise"], quotas=_QUOTAS).token
            other = client.create_token("other", [f"publish:{TOPIC}"]).token
        alone = quantiles(_victim_ms(node.url, other, count))
        neighbour = beside(_be_noisy, node.url, noisy)
        try:
            both = quantiles(_victim_ms(node.url, other, count))
        finally:
            neighbour.kill()
            neighbour.join()
    return both[1], alone[1]


WORKS = [
    Work(
        [
            Row("token", "publish of 1 KB with a token, CPU of the node", "µs", at_most=True),
            Row("plain", "publish of 1 KB, CPU of the node", "µs", at_most=True),
            Row("tls", "publish of 1 KB by HTTPS, CPU of the node", "µs", at_most=True),
            Row("tls-large", "publish of 1 MiB by HTTPS, CPU of the node", "µs", at_most=True),
            Row("plain-large", "publish of 1 MiB, CPU of the node", "µs", at_most=True),
        ],
        _costs,
    ),
    Work(
        [
            Row("noisy", "p99 beside a client beyond its quotas", "ms", 1.5, "alone", at_most=True),
            Row("alone", "p99 of the same client alone", "ms", at_most=True),
        ],
        _noisy,
    ),
]
