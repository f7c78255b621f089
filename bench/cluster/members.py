"""Rows of three nodes on this machine that are a cluster: what agreeing costs, and a failover."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GOQ, STOP_S_MAX, Server, free_port
from bench.harness.topics import fresh_topic, numbered_callers
from bench.messages.batches import CONNECTIONS
from bench.messages.latency import beside, publish_timed, quantiles, receive_goq
from goq.client import Client

PARTITIONS = 6
TOPIC = "bench"
_READY_S_MAX = 60.0
_LOCAL = {"Goq-Local": "true"}
FRAMES = {"Content-Type": frames.FRAMES}


class Member(Server):
    """One node of a cluster, of its first ones or to ``join`` them; :meth:`start` it."""

    def __init__(
        self, name: str, folder: Path, peers: dict[str, str], secret: Path, join: str = ""
    ) -> None:
        self.folder = folder / name
        self.port = free_port()
        self._log = folder / f"{name}.log"
        own = ("--node-id", name, "--cluster-listen", peers[name])
        others = ",".join(f"{peer}={address}" for peer, address in peers.items())
        self._command = [
            *(GOQ, "--json", "serve", "--data-dir", str(self.folder)),
            *("--listen", f"127.0.0.1:{self.port}", *own),
            *(("--join", join) if join else ("--peers", others)),
            *("--cluster-secret-file", str(secret)),
        ]

    def start(self) -> None:
        """Start it; return when it listens."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start it; do not wait until it listens."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log)

    def wait_ready(self) -> None:
        """Return when it listens."""
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def kill(self) -> None:
        """End it as a power switch would."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self.port}"

    def freeze(self) -> None:
        """Let it fall silent, as a host that stands still."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it as an operator would."""
        self.process.terminate()
        self.process.wait(STOP_S_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """Send one request; raise ``OSError`` where there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def nodes_known(self) -> int:
        """Return how many nodes it knows of."""
        path = self.folder / "cluster" / "metadata.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM nodes").fetchone()[0])

    def logs(self) -> dict[str, int]:
        """Return the sizes of its topics' logs."""
        root = self.folder / "topics"
        return {str(p.relative_to(root)): p.stat().st_size for p in root.rglob("*.log")}


class Cluster:
    """Three nodes and a topic of six partitions, each with a replica on every node."""

    def __init__(self, members: list[Member], secret: Path) -> None:
        self.members = members
        self.secret = secret

    def make_topic(self, name: str) -> None:
        """Make a topic, with a replica on every node; return when all of it is led."""
        until(lambda: all(member.nodes_known() == 3 for member in self.members))
        body = json.dumps({"name": name, "partitions": PARTITIONS}).encode()
        until(lambda: self._has_made(body))
        until(lambda: len(self.leaders(name)) == PARTITIONS)

    def _has_made(self, body: bytes) -> bool:
        headers = {"Content-Type": "application/json"}
        status, _ = self.members[0].ask("POST", "/v1/topics", body, headers)
        return status < 300 or status == 409  # by a try before, whose answer was lost

    def leaders(self, topic: str) -> dict[int, Member]:
        """Return who leads which partition."""
        found: dict[int, Member] = {}
        for member in self.members:
            try:
                status, answer = member.ask("GET", f"/v1/topics/{topic}", None, _LOCAL)
            except OSError:
                continue
            if status == 200:
                led = json.loads(answer)["partitions"]
                found |= {partition["partition"]: member for partition in led}
        return found

    def controller(self) -> Member:
        """Return the member that runs the controller."""
        shown = json.loads(self.members[0].ask("GET", "/v1/cluster", None, {})[1])
        return next(m for m in self.members if m.folder.name == shown["controller"])

    def is_caught_up(self) -> bool:
        """Whether all replicas have the same, as far as sizes tell."""
        logs = [member.logs() for member in self.members]
        return all(each == logs[0] for each in logs)


def until(condition: Callable[[], object], seconds_max: float = _READY_S_MAX) -> None:
    """Wait until a condition holds; raise ``TimeoutError`` if it does not."""
    until_s = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError("the cluster is not ready")
        time.sleep(0.02)


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Run a cluster until the block ends."""
    folder.mkdir()
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text("the secret of a cluster that lives for minutes")
    peers = {name: f"127.0.0.1:{free_port()}" for name in ("n1", "n2", "n3")}
    members = [Member(name, folder, peers, secret) for name in peers]
    with ExitStack() as resources:
        for member in members:
            member.start()
            resources.enter_context(member)
        cluster = Cluster(members, secret)
        cluster.make_topic(TOPIC)
        yield cluster


def is_whole(client: Client, nodes: int) -> bool:
    """Return whether so many nodes are up, have all their replicas, and none moves."""
    shown = client.describe_cluster(lag=True)
    are_up = [node.status for node in shown.nodes] == ["up"] * nodes
    return are_up and not shown.under_replicated and not shown.moves


_number = iter(range(10**6))


def fresh_folder(place: Place) -> Path:
    """Return where a cluster of its own may live."""
    return place.folder / f"cluster-{next(_number)}"


def _rates(place: Place) -> tuple[float, ...]:
    """Return messages a second of a node on its own, and of a cluster, loaded alike."""
    with running_cluster(fresh_folder(place)) as cluster:
        batches = _both_rates(place, cluster, CONNECTIONS, 1000, place.scaled(500, 50))
        singles = _both_rates(place, cluster, 64, 1, place.scaled(20_000, 2000))
    return *batches, *singles


def _both_rates(
    place: Place, cluster: Cluster, connections: int, batch: int, requests: int
) -> tuple[float, float]:
    own = fresh_topic(place.goq)
    name = f"bench-{batch}"
    cluster.make_topic(name)
    leaders = cluster.leaders(name)
    ports = [leaders[number % PARTITIONS].port for number in range(connections)]
    rates: list[float] = []
    for topic, served in ((own, place.goq.port), (name, ports)):
        callers = numbered_callers(topic, connections, batch, 1000)
        load(served, callers, requests // 5, http_answer_length)
        rates.append(requests * batch / load(served, callers, requests, http_answer_length))
    return rates[0], rates[1]


def _sequential(place: Place) -> tuple[float, float, float, float, float]:
    """Return quantiles of publishes and of metadata changes one by one, and the CPU at rest."""
    with running_cluster(fresh_folder(place)) as cluster:
        time.sleep(2.0)
        rest_s = place.scaled(10, 3)
        before_s = [member.cpu_s() for member in cluster.members]
        time.sleep(rest_s)
        used_s = [m.cpu_s() - b for m, b in zip(cluster.members, before_s, strict=True)]
        published = _publish_times(cluster, place.scaled(1000, 100))
        agreed = _change_times(cluster, place.scaled(300, 50))
        return *quantiles(published), *quantiles(agreed), 100 * sum(used_s) / 3 / rest_s


def _publish_times(cluster: Cluster, count: int) -> list[float]:
    leader = cluster.leaders(TOPIC)[0]
    body = frames.anonymous_body([bytes(1000)], 0)
    connection = http.client.HTTPConnection("127.0.0.1", leader.port)
    times_ms: list[float] = []
    for _ in range(count):
        began_s = time.perf_counter()
        connection.request("POST", f"/v1/topics/{TOPIC}/messages", body, FRAMES)
        response = connection.getresponse()
        answer = response.read()
        times_ms.append(1000 * (time.perf_counter() - began_s))
        if response.status >= 300:
            raise RuntimeError(answer.decode())
    connection.close()
    return times_ms


def _change_times(cluster: Cluster, count: int) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", cluster.members[0].port)
    times_ms: list[float] = []
    for number in range(count):
        body = json.dumps({"settings": {"retention.age": f"{1 + number}d"}}).encode()
        began_s = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        connection.request("PATCH", f"/v1/topics/{TOPIC}", body, headers)
        response = connection.getresponse()
        answer = response.read()
        times_ms.append(1000 * (time.perf_counter() - began_s))
        if response.status >= 300:
            raise RuntimeError(answer.decode())
    connection.close()
    return times_ms


def _deliveries(place: Place) -> tuple[float, float]:
    """Publish through one node and receive through another; each leads some of the partitions."""
    count = place.scaled(2000, 200)
    with running_cluster(fresh_folder(place)) as cluster:
        one, other, _ = cluster.members
        written = str(fresh_folder(place))
        publisher = beside(publish_timed, one.url, TOPIC, count, written, 100)
        late_ms = asyncio.run(receive_goq(other.url, TOPIC, count))
        publisher.join()
    return quantiles(late_ms)


def _failovers(place: Place) -> tuple[float, float]:
    """Kill the node that leads the most, again and again; return quantiles of seconds."""
    times_s: list[float] = []
    with running_cluster(fresh_folder(place)) as cluster:
        for _ in range(place.scaled(20, 3)):
            [(victim, _)] = Counter(cluster.leaders(TOPIC).values()).most_common(1)
            times_s.append(_failover_s(cluster, victim, victim.kill))
            victim.start()
            _until_whole(cluster)
    return quantiles(times_s)


def _silences(place: Place) -> tuple[float, float, float, float]:
    """Stop nodes without ending them, the controller every other time; return quantiles."""
    times_s: dict[bool, list[float]] = {True: [], False: []}
    with running_cluster(fresh_folder(place)) as cluster:
        for number in range(place.scaled(40, 4)):
            is_controller = bool(number % 2)
            controller = cluster.controller()
            leading = Counter(cluster.leaders(TOPIC).values())
            victim = controller
            if not is_controller:
                victim = max(leading.keys() - {controller}, key=lambda m: leading[m])
            if leading[victim]:
                times_s[is_controller].append(_failover_s(cluster, victim, victim.freeze))
                victim.thaw()
            _until_whole(cluster)
            time.sleep(10.0)  # until it has its leaderships again
    return *quantiles(times_s[False]), *quantiles(times_s[True])


def _until_whole(cluster: Cluster) -> None:
    until(cluster.is_caught_up)
    until(lambda: len(cluster.leaders(TOPIC)) == PARTITIONS)
    time.sleep(1.0)  # until all are in sync again


def _failover_s(cluster: Cluster, victim: Member, strike: Callable[[], None]) -> float:
    """Return how long after a fault the last partition acknowledges something again."""
    others = [member for member in cluster.members if member is not victim]
    began_s = time.monotonic()
    strike()
    ends_s: list[float] = []

    def publish(number: int) -> None:
        body = frames.anonymous_body([b"again"], number)
        for attempt in range(10_000):
            try:
                member = others[(number + attempt) % 2]
                path = f"/v1/topics/{TOPIC}/messages"
                if member.ask("POST", path, body, FRAMES)[0] < 300:
                    ends_s.append(time.monotonic() - began_s)
                    return
            except OSError:
                pass
            time.sleep(0.01)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(ends_s) < PARTITIONS:
        raise RuntimeError("a partition had no leader any more")
    return max(ends_s)


_BATCHES = f"batches of 1000, {CONNECTIONS} connections, 1 KB"
_ACROSS = "published at one node, delivered at another, 100 a second"
_SINGLES = "single messages, 64 connections, 1 KB"
WORKS = [
    Work(
        [
            Row("cluster-alone", f"{_BATCHES}: a node on its own", "msg/s"),
            Row(
                "cluster-rate",
                f"{_BATCHES}: three nodes here, acknowledged by two",
                "msg/s",
                1 / 2,
                "cluster-alone",
            ),
            Row("cluster-singles-alone", f"{_SINGLES}: a node on its own", "msg/s"),
            Row(
                "cluster-singles",
                f"{_SINGLES}: three nodes here, acknowledged by two",
                "msg/s",
                1 / 2,
                "cluster-singles-alone",
            ),
        ],
        _rates,
    ),
    Work(
        [
            Row("cluster-p50", "three nodes, publishes one by one: p50", "ms", 0.8, at_most=True),
            Row("cluster-p99", "three nodes, publishes one by one: p99", "ms", 4, at_most=True),
            Row("cluster-agree-p50", "three nodes, a change of metadata: p50", "ms"),
            Row("cluster-agree-p99", "three nodes, a change of metadata: p99", "ms"),
            Row("cluster-idle", "three nodes at rest: CPU of each", "% of a core", 1, at_most=True),
        ],
        _sequential,
    ),
    Work(
        [
            Row("cluster-delivered-p50", f"{_ACROSS}: p50", "ms", 2, at_most=True),
            Row("cluster-delivered-p99", f"{_ACROSS}: p99", "ms"),
        ],
        _deliveries,
    ),
    Work(
        [
            Row("cluster-failover-p50", "kill to all partitions acknowledge: p50", "s"),
            Row("cluster-failover-p99", "the same: p99", "s", 2, at_most=True),
        ],
        _failovers,
    ),
    Work(
        [
            Row("cluster-silent-p50", "SIGSTOP to all partitions acknowledge: p50", "s"),
            Row("cluster-silent-p99", "the same: p99", "s", 2, at_most=True),
            Row("cluster-silent-controller-p50", "the same, of the controller: p50", "s"),
            Row("cluster-silent-controller-p99", "the same: p99", "s", 2, at_most=True),
        ],
        _silences,
    ),
]
