"""Which paths a node answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.node.running_node import running_node


@cache
def paths_of_a_node() -> frozenset[str]:
    """Return the paths that a node describes."""
    with TemporaryDirectory() as folder, running_node(Path(folder)) as node:
        return frozenset(node.call("GET", "/openapi.json")["paths"])
