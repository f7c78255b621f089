"""``python -m bench.stalls [--only NAME]``: how long requests at their bounds hold up others.

Each request is the largest that its route allows. Meanwhile another process asks ``/livez`` over
its own connection; its longest wait, and the node's own ``goq_loop_stall_seconds``, are printed.
A machine that is busy with other work adds to both.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from bench.servers import GoqNode
from goq.frame.encoder import Columns, encode_frame

FRAMES = "application/vnd.goq.frames"
JSON = "application/json"
WIDE = 60_000
_STALL = re.compile(r'^goq_loop_stall_seconds\{method="(.*?)",route="(.*?)"\} (\S+)$', re.M)
_PAUSE_S = 0.001


class Answer(NamedTuple):
    status: int
    body: bytes
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """A client of one connection that knows nothing of goq."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def call(
        self, method: str, path: str, body: Any = None, accept: str = JSON, kind: str = JSON
    ) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Accept": accept} | ({} if data is None else {"Content-Type": kind})
        began_s = time.perf_counter()
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        body = answer.read()
        return Answer(answer.status, body, time.perf_counter() - began_s)

    def do(self, method: str, path: str, body: Any = None, kind: str = JSON) -> Any:
        answer = self.call(method, path, body, kind=kind)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:300]!r}")
        return answer.json() if answer.body else None


def _probe(port: int, asked: Connection) -> None:
    """Ask ``/livez`` all the time; answer with the longest wait since the last question."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    longest_s = 0.0
    while True:
        began_s = time.perf_counter()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        longest_s = max(longest_s, time.perf_counter() - began_s)
        if asked.poll(_PAUSE_S):
            if asked.recv() is None:
                return
            asked.send(longest_s)
            longest_s = 0.0


class Prober:
    """Another client, in a process of its own."""

    def __init__(self, port: int) -> None:
        self._pipe, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_probe, args=(port, other), daemon=True)
        self._process.start()
        self.longest_s()

    def longest_s(self) -> float:
        """Return the longest wait since the last call."""
        self._pipe.send(True)
        return float(self._pipe.recv())

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join(10)


def frame_body(columns: Columns, *, compress: bool = False) -> bytes:
    return bytes(4) + encode_frame(columns, compress=compress)


def wide_columns(count: int = WIDE, *, headers: bool = False) -> Columns:
    """Return messages whose lanes and tenants alternate, each with a dedup id and a key."""
    return Columns(
        values=[b"value-%d" % n for n in range(count)],
        keys=[b"key-%d" % n for n in range(count)],
        headers=[(("name", b"%d" % n),) for n in range(count)] if headers else None,
        dedup_ids=[(n + 1).to_bytes(16, "little") for n in range(count)],
        tenants=[f"tenant-{n}" for n in range(count)],
        lanes=[n % 3 for n in range(count)],
    )


class Work:
    """The topics to ask about, and the requests; each scenario is a method."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self._made: dict[str, str] = {}

    def topic(self, name: str, **settings: Any) -> str:
        if name not in self._made:
            body = {"name": name, "partitions": 1, "settings": settings}
            self.caller.do("POST", "/v1/topics", body)
            self._made[name] = name
        return name

    def publish(self, topic: str, columns: Columns, *, compress: bool = False) -> None:
        body = frame_body(columns, compress=compress)
        self.caller.do("POST", f"/v1/topics/{topic}/messages", body, FRAMES)

    def wide(self) -> str:
        """A topic of two frames whose lanes and tenants alternate."""
        if "wide" in self._made:
            return "wide"
        topic = self.topic("wide", **{"dedup.window": "1h"})
        self.caller.call("POST", f"/v1/topics/{topic}/groups/g/receive", {})
        for first in (0, 1):
            columns = wide_columns(headers=True)
            ids = [(first * WIDE + n + 1).to_bytes(16, "little") for n in range(WIDE)]
            self.publish(topic, Columns(**{**_fields(columns), "dedup_ids": ids}))
        return topic

    def plain(self) -> str:
        if "plain" in self._made:
            return "plain"
        topic = self.topic("plain")
        self.publish(topic, Columns([b"x" * 100] * 65_536))
        return topic

    def receive(self, topic: str, group: str, count: int = 10_000) -> list[str]:
        body = {"max_messages": count, "visibility": "1h", "consumer": "c"}
        found = self.caller.do("POST", f"/v1/topics/{topic}/groups/{group}/receive", body)
        return [message["receipt"] for message in found["messages"]]


def _fields(columns: Columns) -> dict[str, Any]:
    return {name: getattr(columns, name) for name in Columns.__struct_fields__}


Request = Callable[[], Answer]
Scenario = Callable[[Work], Request]
SCENARIOS: dict[str, Scenario] = {}


def scenario(prepare: Scenario) -> Scenario:
    SCENARIOS[prepare.__name__.strip("_").replace("_", "-")] = prepare
    return prepare


def _publishing(work: Work, body: bytes, kind: str = JSON) -> Request:
    topic = work.topic("published")
    return lambda: work.caller.call("POST", f"/v1/topics/{topic}/messages", body, kind=kind)


@scenario
def publish_json_with_headers(work: Work) -> Request:
    headers = {f"header-{n}": "v" for n in range(64)}
    messages = [{"value": "v", "headers": headers}] * 10_000
    return _publishing(work, json.dumps({"messages": messages}).encode())


@scenario
def publish_json_of_all_fields(work: Work) -> Request:
    messages = [
        {"value": f"v{n}", "key": f"k{n}", "tenant": f"t{n}", "dedup_id": f"d{n}", "delay": "1h"}
        | {"ttl": "2h", "priority": "high", "headers": {"a": "b"}, "partition": 0}
        for n in range(10_000)
    ]
    return _publishing(work, json.dumps({"messages": messages}).encode())


@scenario
def publish_json_too_many(work: Work) -> Request:
    return _publishing(work, b'{"messages":[' + b",".join([b"{}"] * 8_000_000) + b"]}")


@scenario
def publish_json_one_large(work: Work) -> Request:
    value = base64.b64encode(bytes(8 << 20)).decode()
    return _publishing(work, json.dumps({"messages": [{"value_base64": value}]}).encode())


@scenario
def publish_frames_wide(work: Work) -> Request:
    columns = wide_columns(65_535, headers=True)
    return _publishing(work, frame_body(columns) * 2, FRAMES)


@scenario
def publish_frames_compressed(work: Work) -> Request:
    body = frame_body(Columns([bytes(250)] * 60_000), compress=True) * 4
    return _publishing(work, body, FRAMES)


@scenario
def publish_frames_many(work: Work) -> Request:
    return _publishing(work, frame_body(Columns([b"v"])) * 1000, FRAMES)


@scenario
def read_json(work: Work) -> Request:
    path = f"/v1/topics/{work.wide()}/messages?partition=0&limit=10000&offset=30000"
    return lambda: work.caller.call("GET", path)


@scenario
def read_frames(work: Work) -> Request:
    path = f"/v1/topics/{work.wide()}/messages?partition=0&limit=10000&offset=55000"
    return lambda: work.caller.call("GET", path, accept=FRAMES)


def _receiving(work: Work, topic: str, group: str, accept: str) -> Request:
    path = f"/v1/topics/{topic}/groups/{group}/receive"
    body = {"max_messages": 10_000, "visibility": "1h"}
    return lambda: work.caller.call("POST", path, body, accept=accept)


@scenario
def receive_json(work: Work) -> Request:
    return _receiving(work, work.wide(), "g", JSON)


@scenario
def receive_frames(work: Work) -> Request:
    return _receiving(work, work.wide(), "g", FRAMES)


@scenario
def receive_plain_json(work: Work) -> Request:
    return _receiving(work, work.plain(), "g", JSON)


@scenario
def receive_large_frame_cut(work: Work) -> Request:
    topic = work.topic("large")
    work.publish(topic, Columns([b"x" * 250] * 60_000))
    work.receive(topic, "g", 9_000)
    return _receiving(work, topic, "g", FRAMES)


def _settling(work: Work, verb: str, **more: Any) -> Request:
    receipts = work.receive(work.wide(), "g")
    path = f"/v1/topics/wide/groups/g/{verb}"
    return lambda: work.caller.call("POST", path, {"receipts": receipts, **more})


@scenario
def ack(work: Work) -> Request:
    return _settling(work, "ack")


@scenario
def extend(work: Work) -> Request:
    return _settling(work, "extend", visibility="2h")


@scenario
def nack(work: Work) -> Request:
    return _settling(work, "nack", delay="1h", reason="r" * 1000)


@scenario
def reject(work: Work) -> Request:
    return _settling(work, "reject", reason="r")


@scenario
def group_with_leases(work: Work) -> Request:
    work.receive(work.wide(), "g")
    return lambda: work.caller.call("GET", "/v1/topics/wide/groups/g")


@scenario
def message(work: Work) -> Request:
    work.wide()
    return lambda: work.caller.call("GET", "/v1/messages/wide:0:59000")


@scenario
def trace(work: Work) -> Request:
    work.wide()
    return lambda: work.caller.call("GET", "/v1/messages/wide:0:0/trace")


@scenario
def search_by_header(work: Work) -> Request:
    path = f"/v1/topics/{work.wide()}/trace?header=name%3D59999&limit=100"
    return lambda: work.caller.call("GET", path)


def _peeking(work: Work, state: str) -> Request:
    path = f"/v1/topics/{work.wide()}/groups/g/peek?limit=10000&state={state}"
    return lambda: work.caller.call("GET", path)


@scenario
def peek_ready(work: Work) -> Request:
    return _peeking(work, "ready")


@scenario
def peek_leased(work: Work) -> Request:
    work.receive(work.wide(), "g")
    return _peeking(work, "leased")


@scenario
def peek_done(work: Work) -> Request:
    return _peeking(work, "done")


@scenario
def peek_dead(work: Work) -> Request:
    receipts = work.receive(work.wide(), "g")
    work.caller.do("POST", "/v1/topics/wide/groups/g/reject", {"receipts": receipts})
    time.sleep(3)
    return _peeking(work, "dead")


@scenario
def dead_list(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/v1/topics/wide/dead?limit=10000")


@scenario
def dead_redrive(work: Work) -> Request:
    return lambda: work.caller.call("POST", "/v1/topics/wide/redrive", {"max_messages": 10_000})


@scenario
def dead_purge(work: Work) -> Request:
    return lambda: work.caller.call("DELETE", "/v1/topics/wide/dead?max_messages=10000")


@scenario
def scheduled(work: Work) -> Request:
    topic = work.topic("later")
    far_ms = int(time.time() * 1000) + 86_400_000
    for _ in range(2):
        columns = wide_columns()
        times = [far_ms - (n * 7919) % WIDE for n in range(WIDE)]
        found = {**_fields(columns), "deliver_at_ms": times, "dedup_ids": None}
        work.publish(topic, Columns(**found))
    return lambda: work.caller.call("GET", f"/v1/topics/{topic}/scheduled?limit=1000")


@scenario
def events_json(work: Work) -> Request:
    topic = work.topic("sparse")
    if not work.caller.do("GET", f"/v1/topics/{topic}")["partitions"][0]["end_offset"]:
        for _ in range(8):
            work.publish(topic, Columns([b"v"] * 65_536))
    for _ in range(5):
        receipts = work.receive(topic, "s", 10_000)[::2]
        work.caller.do("POST", f"/v1/topics/{topic}/groups/s/ack", {"receipts": receipts})
    return lambda: work.caller.call("GET", f"/v1/topics/{topic}/events?partition=0&limit=1000")


@scenario
def group_sparse(work: Work) -> Request:
    events_json(work)
    return lambda: work.caller.call("GET", "/v1/topics/sparse/groups/s")


@scenario
def reset_sparse(work: Work) -> Request:
    events_json(work)
    body = {"to": 400_000}
    return lambda: work.caller.call("POST", "/v1/topics/sparse/groups/s/reset", body)


@scenario
def settings_unknown(work: Work) -> Request:
    topic = work.topic("settings")
    body = json.dumps({"settings": {f"a{n}": 1 for n in range(150_000)}}).encode()
    return lambda: work.caller.call("PATCH", f"/v1/topics/{topic}", body)


@scenario
def settings_deep(work: Work) -> Request:
    topic = work.topic("settings")
    tree = {f"a{n}": {f"b{m}": {"c": 1} for m in range(200)} for n in range(300)}
    body = json.dumps({"settings": tree}).encode()
    return lambda: work.caller.call("PATCH", f"/v1/topics/{topic}", body)


@scenario
def history(work: Work) -> Request:
    path = f"/v1/topics/{quote(work.wide())}/history?days=366"
    return lambda: work.caller.call("GET", path)


def _looking(path: str) -> Scenario:
    return lambda work: lambda: work.caller.call("GET", path)


for _path in ("/openapi.json", "/docs", "/healthz", "/v1/cluster", "/v1/topics"):
    SCENARIOS["get" + _path.replace("/", "-")] = _looking(_path)


@scenario
def groups(work: Work) -> Request:
    topic = work.topic("groups")
    work.publish(topic, Columns([b"v"]))
    for number in range(10_000):
        work.caller.do("POST", f"/v1/topics/{topic}/groups/g{number}/receive", {})
    return lambda: work.caller.call("GET", f"/v1/topics/{topic}/groups")


@scenario
def metrics(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/metrics")


@scenario
def topics(work: Work) -> Request:
    for number in range(150):
        work.caller.do("POST", "/v1/topics", {"name": f"many-{number}", "partitions": 20})
    return lambda: work.caller.call("GET", "/v1/topics")


@scenario
def metrics_of_many_partitions(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/metrics")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="begins so; repeatable")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as folder,
        GoqNode(Path(folder) / "goq") as node,
    ):
        _run(node, arguments.only)
    return 0


def _run(node: GoqNode, only: list[str] | None) -> None:
    work, prober = Work(Caller(node.port)), Prober(node.port)
    held: dict[str, float] = {}
    print(f"{'request':30} {'status':>6} {'took':>9} {'longest wait':>13}  ms")
    for name, prepare in SCENARIOS.items():
        if only is not None and not any(name.startswith(wanted) for wanted in only):
            continue
        try:
            request = prepare(work)
            prober.longest_s()
            answer = request()
        except Exception as error:
            print(f"{name:30} {type(error).__name__}: {error}"[:200], flush=True)
            continue
        wait_ms = prober.longest_s() * 1000
        line = f"{name:30} {answer.status:6} {answer.seconds * 1000:9.1f} {wait_ms:13.1f}"
        print(line, flush=True)
        text = work.caller.call("GET", "/metrics").body.decode()
        for method, route, seconds in _STALL.findall(text):
            kind = f"{method} {route}"
            held[kind] = max(held.get(kind, 0.0), float(seconds))
    print("\ngoq_loop_stall_seconds, the longest of each, ms")
    for kind, seconds in sorted(held.items(), key=lambda item: -item[1]):
        print(f"{kind:60} {seconds * 1000:9.1f}")
    prober.stop()


if __name__ == "__main__":
    sys.exit(main())
