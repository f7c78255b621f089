"""Bad traffic leaves no trace in memory: a node in a process of its own is measured."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from goq import limits
from tests.support.api import frames as f
from tests.support.node.node_process import NodeProcess

MIB = limits.MIB
GROWTH_BYTES_MAX = 64 * MIB
PEAK_GROWTH_BYTES_MAX = 400 * MIB  # of one body of 32 MiB, decoded and checked


class Served:
    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self._connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)

    def post(self, path: str, body: bytes, content_type: str) -> int:
        self._connection.request("POST", path, body, {"Content-Type": content_type})
        response = self._connection.getresponse()
        response.read()
        return response.status

    def close(self) -> None:
        self._connection.close()

    def status_bytes(self, name: str) -> int:
        for line in Path(f"/proc/{self.node.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(name)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with NodeProcess(tmp_path / "data", interpreter=True) as node:
        running = Served(node)
        yield running
        running.close()
        assert node.stop() == 0


def hostile() -> list[tuple[str, bytes, str]]:
    publish = "/v1/topics/t/messages"
    json, frames = "application/json", "application/vnd.goq.frames"
    fill = 30 * MIB
    empties = b'{"messages":[' + b"{}," * (fill // 3) + b"{}]}"
    shorts = b'{"messages":[' + b'{"value":""},' * (fill // 13) + b'{"value":""}]}'
    names = b",".join(b'"%x":""' % n for n in range(1_000_000))
    headers = b'{"messages":[{"value":"","headers":{' + names + b"}}]}"
    receipts = b'{"receipts":[' + b'"ab",' * (fill // 5) + b'"ab"]}'
    bomb = f.placed(f.frame(bytes(8 * MIB), bytes(7 * MIB), compress=True))
    return [
        (publish, empties, json),
        (publish, shorts, json),
        (publish, headers, json),
        (publish, b"[" * fill, json),
        (publish, b'{"messages":[{"valeu":"' + b"x" * fill + b'"}]}', json),
        (publish, bytes(fill), frames),
        (publish, bomb * 900, frames),
        ("/v1/topics/t/groups/g/ack", receipts, json),
        ("/v1/topics", b'{"name":"' + b"n" * fill + b'"}', json),
    ]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_after_hostile_bodies_what_it_was_before(served: Served) -> None:
    good = b'{"messages": [{"value": "%s"}]}' % (b"x" * 5 * MIB)
    for _ in range(3):  # what a node keeps for its work, it keeps before as after
        assert served.post("/v1/topics/t/messages", good, "application/json") == 200
    before = served.status_bytes("VmRSS")
    peak_before = served.status_bytes("VmHWM")
    for path, body, content_type in hostile():
        assert 400 <= served.post(path, body, content_type) < 500
    assert served.status_bytes("VmRSS") - before < GROWTH_BYTES_MAX
    assert served.status_bytes("VmHWM") - peak_before < PEAK_GROWTH_BYTES_MAX
