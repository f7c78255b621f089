"""Three ``goq serve`` processes that are one cluster, for tests that kill, pause or cut off nodes.

A thread cannot be killed or paused, so nodes of :mod:`tests.support.cluster.running_cluster` are
no substitute. Each node is a :class:`NodeProcess`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from goq.client import Client
from goq.errors import Conflict, GoqError, TopicExists
from tests.support.cluster.links import Links, Port
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess
from tests.support.node.ports import HOST, reserved_port

NAMES = ("n1", "n2", "n3")


class ProcessCluster:
    """The nodes by name, and what they say of each other."""

    def __init__(self, nodes: dict[str, NodeProcess]) -> None:
        self.nodes = nodes

    @property
    def urls(self) -> list[str]:
        """Where the nodes listen."""
        return [node.url for node in self.nodes.values()]

    def leaders(self, topic: str) -> dict[int, str | None]:
        """Return who leads each partition of a topic, as a node that runs says."""
        running = next(node for node in self.nodes.values() if node.is_running)
        with Client(running.url, timeout="5s", retries="0s") as client:
            (shown,) = client.describe_cluster(topic).topics
        return {each.partition: each.leader for each in shown.partitions}

    def kill(self, name: str, topic: str) -> None:
        """End a node as a power switch would; return when others lead what it led."""
        self.nodes[name].kill()
        eventually(
            lambda: (
                name not in self.leaders(topic).values()
                and None not in self.leaders(topic).values()
            ),
            f"others lead what {name} led",
            seconds=60,
        )

    def create(self, topic: str, partitions: int, **settings: str) -> None:
        """Create a topic of which every node leads a part."""
        with Client(self.urls, retries="60s") as client:

            def create() -> bool:
                try:
                    client.create_topic(topic, partitions=partitions, settings=settings)
                except TopicExists:
                    return True
                except Conflict:  # a slow node was taken for a dead one
                    return False
                return True

            eventually(create, f"{topic} can be made", seconds=60)
        eventually(
            lambda: set(self.leaders(topic).values()) == set(NAMES),
            f"every node leads a part of {topic}",
            seconds=60,
        )

    def start_the_dead(self) -> None:
        """Start the nodes that do not run; return when all have heard of each other."""
        dead = [node for node in self.nodes.values() if not node.is_running]
        for node in dead:
            node.launch()
        for node in dead:
            node.wait_ready()
        eventually(self._is_formed, "the nodes have found each other", seconds=60)

    def _is_formed(self) -> bool:
        try:
            for url in self.urls:
                with Client(url, timeout="5s", retries="0s") as client:
                    found = client.describe_cluster().nodes
                if [node.status for node in found] != ["up"] * len(NAMES):
                    return False
        except GoqError:
            return False
        return True


@contextmanager
def process_nodes(
    folder: Path,
    *,
    settings: Sequence[str] = (),
    route: Callable[[str, Port, int], int] = lambda _name, _kind, port: port,
    may_rejoin: bool = False,
) -> Iterator[dict[str, NodeProcess]]:
    """Yield three nodes of a cluster, not started yet; end them when the block ends.

    The other nodes reach a port of a node at the port that ``route`` returns for it, as
    ``Links.before`` does. With ``may_rejoin`` a node that has left may come back with an empty
    folder.
    """
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    with ExitStack() as stack:
        ports = {name: stack.enter_context(reserved_port()) for name in NAMES}
        raft_ports = {name: stack.enter_context(reserved_port()) for name in NAMES}
        peers = ",".join(
            f"{n}={HOST}:{route(n, Port.RAFT, port)}" for n, port in raft_ports.items()
        )
        urls = {n: f"http://{HOST}:{route(n, Port.HTTP, port)}" for n, port in ports.items()}
        joins = {n: urls[NAMES[number - 1]] for number, n in enumerate(NAMES)}
        nodes = {
            name: NodeProcess(
                folder / name,
                port=ports[name],
                settings=[
                    *settings,
                    f"broker.node_id={name}",
                    f"cluster.listen={HOST}:{raft_ports[name]}",
                    f"cluster.advertise={urls[name]}",
                    f"cluster.peers={peers}",
                    f"cluster.secret_file={secret}",
                    *([f"cluster.join={joins[name]}"] if may_rejoin else []),
                ],
            )
            for name in NAMES
        }
        for node in nodes.values():
            stack.callback(node.close)
        yield nodes


@contextmanager
def linked_nodes(
    folder: Path, settings: Sequence[str] = (), *, may_rejoin: bool = False
) -> Iterator[tuple[dict[str, NodeProcess], Links]]:
    """Yield nodes as :func:`process_nodes` does, and the links between them."""
    nodes: dict[str, NodeProcess] = {}

    def pid_of(name: str) -> int | None:
        node = nodes.get(name)
        return node.pid if node is not None and node.is_running else None

    with (
        Links(pid_of) as links,
        process_nodes(folder, settings=settings, route=links.before, may_rejoin=may_rejoin) as made,
    ):
        nodes |= made
        yield nodes, links


class LinkedCluster(ProcessCluster):
    """Nodes by name, and the links between them; use :func:`linked_cluster`."""

    def __init__(self, nodes: dict[str, NodeProcess], links: Links) -> None:
        super().__init__(nodes)
        self.links = links


@contextmanager
def linked_cluster(folder: Path) -> Iterator[LinkedCluster]:
    """Run three nodes with links that can be cut, until the block ends."""
    with linked_nodes(folder) as (nodes, links):
        cluster = LinkedCluster(nodes, links)
        try:
            cluster.start_the_dead()
            yield cluster
        except BaseException as error:
            for name, node in nodes.items():
                error.add_note(f"{name} said:\n{node.log_text()}")
            raise


@contextmanager
def process_cluster(folder: Path) -> Iterator[ProcessCluster]:
    """Run three nodes until the block ends; they have found each other when it begins."""
    with process_nodes(folder) as nodes:
        cluster = ProcessCluster(nodes)
        cluster.start_the_dead()
        yield cluster
