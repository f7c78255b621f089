"""Nodes of one cluster in this process, each in a thread, a folder and on ports of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.node.running_node import RunningNode
from tests.support.ports import HOST, free_port


class Members:
    """Starts nodes, each again with the same flags as before; the first is a cluster by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, RunningNode] = {}
        self._flags: dict[str, dict[str, Any]] = {}
        self._secret = folder / "secret"
        self._secret.write_text("a secret of this test\n")

    def start(self, name: str, via: str | None = None) -> RunningNode:
        """Start a node; a new one joins by the node ``via``."""
        if name not in self._flags:
            address = f"{HOST}:{free_port()}"
            how: dict[str, Any] = {"peers": {name: address}}
            if via is not None:
                how = {"join": self.running[via].url}
            self._flags[name] = {
                "broker": {"node_id": name, "listen": f"{HOST}:{free_port()}"},
                "cluster": {"listen": address, "secret_file": self._secret, **how},
            }
        node = RunningNode(self.folder / name, self._flags[name])
        node.start()
        self.running[name] = node
        return node

    def stop(self, name: str) -> None:
        """Stop a node as SIGTERM would."""
        self.running.pop(name).stop()

    def statuses(self, by: str) -> dict[str, str]:
        """Return how the nodes are, as one of them knows."""
        return {n["id"]: n["status"] for n in self.running[by].call("GET", "/v1/cluster")["nodes"]}


@contextmanager
def members(folder: Path) -> Iterator[Members]:
    """Run a cluster's nodes until the block ends."""
    some = Members(folder)
    try:
        yield some
    finally:
        for name in list(some.running):
            some.stop(name)
