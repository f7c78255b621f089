"""Three ``goq serve`` processes that are a cluster, and what a test asks of all of them."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from goq.cluster.metadata.state import MetadataState
from goq.cluster.metadata.tables import load_state
from tests.process.chaos.links import Links
from tests.process.chaos.small_disk import SmallDisk, small_disk
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess

NAMES = ("n1", "n2", "n3")
ON_SMALL_DISK = "n3"
SETTLE_S_MAX = 120.0
_CALL_S_MAX = 20.0


class Answer(NamedTuple):
    """A response, whole."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """What it says."""
        return json.loads(self.body)


class Member(NodeProcess):
    """A node of a cluster, which the others reach over links that can be cut."""

    def __init__(self, name: str, folder: Path, links: Links, settings: tuple[str, ...]) -> None:
        super().__init__(folder, settings=settings)
        self.name = name
        advertised = f"http://127.0.0.1:{links.before(name, self.port)}"
        self._settings += ["--set", f"cluster.advertise={advertised}"]

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = _CALL_S_MAX,
    ) -> Answer:
        """Send one request on a connection of its own; raise ``OSError`` for no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.read())
        except http.client.HTTPException as error:
            raise OSError(f"no answer: {error!r}") from None
        finally:
            connection.close()


class Cluster:
    """Nodes by name, and the links among them; use :func:`running_cluster`.

    ``disk`` is that of the node ``ON_SMALL_DISK``, None where it has none of its own.
    """

    def __init__(
        self, folder: Path, links: Links, nodes: dict[str, Member], disk: SmallDisk | None
    ) -> None:
        self.folder = folder
        self.links = links
        self.nodes = nodes
        self.disk = disk

    def ask_each(self, path: str) -> list[Any]:
        """Return what each node that answers says for itself."""
        found = []
        for node in self.nodes.values():
            answer = node.ask("GET", path, headers={"Goq-Local": "true"})
            if answer.status == 200:
                found.append(answer.json)
        return found

    def leaders(self, topic: str) -> dict[int, str]:
        """Return which node leads each partition of a topic, of those that are led."""
        found: dict[int, str] = {}
        for name, node in self.nodes.items():
            try:
                answer = node.ask("GET", f"/v1/topics/{topic}", headers={"Goq-Local": "true"})
            except OSError:
                continue
            if answer.status == 200:
                found |= {each["partition"]: name for each in answer.json["partitions"]}
        return found

    def make_topic(self, topic: str, group: str, settings: Mapping[str, str]) -> None:
        """Make a topic and a group of it; return when all of its partitions are led.

        All nodes are in the cluster before: a topic has replicas on those that are there.
        """
        eventually(
            lambda: all(len(self._agreed_at(node).nodes) == 3 for node in self.nodes.values()),
            "all nodes are in the cluster",
            seconds=SETTLE_S_MAX,
            pause_s=0.1,
        )
        made = json.dumps({"name": topic, "partitions": 6, "settings": dict(settings)}).encode()
        used = f"/v1/topics/{topic}/groups/{group}"
        for request in (("POST", "/v1/topics", made), ("PUT", used, b'{"settings":{}}')):
            eventually(lambda r=request: self._done(*r), request[1], seconds=SETTLE_S_MAX)
        eventually(
            lambda: len(self.leaders(topic)) == 6, "all is led", seconds=SETTLE_S_MAX, pause_s=0.1
        )
        is_known = lambda: len(self.ask_each(f"/v1/topics/{topic}")) == len(self.nodes)  # noqa: E731
        eventually(is_known, "all know the topic", seconds=SETTLE_S_MAX, pause_s=0.1)

    def _done(self, method: str, path: str, body: bytes) -> bool:
        headers = {"Content-Type": "application/json"}
        status = self.nodes["n1"].ask(method, path, body, headers).status
        return status < 300 or status == 409  # an earlier attempt may have been carried out

    def is_whole(self, topic: str) -> bool:
        """Whether all replicas of a topic are in sync, as the node knows that knows the most."""
        states = [self._agreed_at(node) for node in self.nodes.values()]
        partitions = [state.topics[topic].partitions for state in states]
        newest = max(partitions, key=lambda of_topic: sum(p.version for p in of_topic))
        return all(len(p.in_sync) == len(NAMES) for p in newest)

    @staticmethod
    def _agreed_at(node: Member) -> MetadataState:
        path = node.folder / "cluster" / "metadata.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return load_state(db, 0)

    def differing_logs(self, topic: str) -> list[str]:
        """Return the segments of a topic's logs that are not the same bytes on all nodes."""
        contents: list[dict[str, bytes]] = []
        for node in self.nodes.values():
            root = node.folder / "topics" / topic
            paths = (path for path in root.rglob("*.log"))
            contents.append({str(path.relative_to(root)): path.read_bytes() for path in paths})
        names = {name for content in contents for name in content}
        assert names, "there is no log at all"
        return sorted(n for n in names if len({content.get(n) for content in contents}) > 1)

    def say(self) -> str:
        """Return the end of what each node has said."""
        ends = (
            f"{name} said:\n{node.log.read_text()[-3000:]}" for name, node in self.nodes.items()
        )
        return "\n".join(ends)


@contextmanager
def running_cluster(folder: Path, settings: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """Run three nodes until the block ends."""
    nodes: dict[str, Member] = {}

    def pid_of(name: str) -> int | None:
        node = nodes.get(name)
        return node.pid if node is not None and node.is_running else None

    with ExitStack() as resources:
        disk = resources.enter_context(small_disk(folder / ON_SMALL_DISK))
        links = resources.enter_context(Links(pid_of))
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        raft = {name: resources.enter_context(_reserved()) for name in NAMES}
        ports = {name: reserved.getsockname()[1] for name, reserved in raft.items()}
        peers = ",".join(f"{n}=127.0.0.1:{links.before(n, port)}" for n, port in ports.items())
        for name in NAMES:
            of_cluster = (
                f"broker.node_id={name}",
                f"cluster.listen=127.0.0.1:{ports[name]}",
                f"cluster.peers={peers}",
                f"cluster.secret_file={secret}",
            )
            nodes[name] = Member(name, folder / name, links, (*settings, *of_cluster))
            resources.callback(nodes[name].close)
        cluster = Cluster(folder, links, nodes, disk)
        try:
            for node in nodes.values():
                node.launch()
            for node in nodes.values():
                node.wait_ready()
            yield cluster
        except BaseException as error:
            error.add_note(cluster.say())
            raise


def _reserved() -> socket.socket:
    """Return a socket that keeps a port from others, but not from a node that listens there."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation
