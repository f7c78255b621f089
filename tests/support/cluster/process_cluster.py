"""Three ``goq serve`` processes that are one cluster, for a test to hurt."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from goq.client import Client
from goq.errors import Conflict, GoqError, TopicExists
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess

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
def process_cluster(folder: Path) -> Iterator[ProcessCluster]:
    """Run three nodes until the block ends; they have found each other when it begins."""
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    with ExitStack() as stack:
        addresses = {name: stack.enter_context(_reserved()) for name in NAMES}
        peers = ",".join(f"{name}={at}" for name, at in addresses.items())
        cluster = ProcessCluster(
            {
                name: NodeProcess(
                    folder / name,
                    settings=[
                        f"broker.node_id={name}",
                        f"cluster.listen={at}",
                        f"cluster.peers={peers}",
                        f"cluster.secret_file={secret}",
                    ],
                )
                for name, at in addresses.items()
            }
        )
        for node in cluster.nodes.values():
            stack.callback(node.close)
        cluster.start_the_dead()
        yield cluster


@contextmanager
def _reserved() -> Iterator[str]:
    """Keep a port for a node, which may bind it too, and from everybody else."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
