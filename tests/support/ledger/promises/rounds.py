"""Rounds of a checker: a node of its own, a seed that repeats, and quick and long variants."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster.process_cluster import process_nodes
from tests.support.ledger.promises.wire import Wire
from tests.support.node.node_process import NodeProcess

SEED = int(os.environ.get("GOQ_KILL_SEED") or random.SystemRandom().getrandbits(32))

rounds = pytest.mark.parametrize("effort", [1, pytest.param(5, marks=pytest.mark.long)])
"""How much is done: little in ``make test``, more in a long round."""


@dataclass(frozen=True)
class Round:
    """Nodes, a patient connection to them, and the chance of this round."""

    nodes: Sequence[NodeProcess]
    wire: Wire
    chance: random.Random
    topic: str = "t"

    def create(self, partitions: int, **settings: str) -> None:
        """Create the topic; ``__`` in a name is a dot."""
        said = {name.replace("__", "."): value for name, value in settings.items()}
        body = {"name": self.topic, "partitions": partitions, "settings": said}
        self.wire.must("POST", "/v1/topics", body)

    def connect(self, patience_s: float = 1.0, session: str = "") -> Wire:
        """Return another connection, for a thread, perhaps of a session."""
        ports = [node.port for node in self.nodes]
        return Wire(self.chance.sample(ports, len(ports)), patience_s, session)

    def new_chance(self) -> random.Random:
        """Return a chance for a thread."""
        return random.Random(self.chance.getrandbits(64))

    def wait_until_healthy(self) -> None:
        """Return when each node says that it takes traffic."""
        for node in self.nodes:
            with Wire([node.port]) as wire:
                wire.must("GET", "/readyz", seconds=60)


@contextmanager
def one_round(folder: Path, effort: int, node_count: int = 1) -> Iterator[Round]:
    """Run nodes until the block ends; an error says how to repeat the round."""
    settings = ["defaults.topic.segment.bytes=64KiB"]
    chance = random.Random(f"{SEED} {effort}")
    with ExitStack() as stack:
        if node_count == 1:
            nodes = [stack.enter_context(NodeProcess(folder / "data", settings=settings))]
        else:
            nodes = [*stack.enter_context(process_nodes(folder, settings=settings)).values()]
            for node in nodes:
                node.launch()
            for node in nodes:
                node.wait_ready()
        wire = stack.enter_context(Wire([node.port for node in nodes]))
        each = Round(nodes, wire, chance)
        try:
            each.wait_until_healthy()
            yield each
        except BaseException as error:
            error.add_note(f"to repeat: GOQ_KILL_SEED={SEED}")
            raise


def report(violations: Sequence[str], summary: str) -> None:
    """Fail with the first violations, if there are any."""
    shown = "\n  ".join(violations[:8])
    assert not violations, f"{len(violations)} violations; {summary}\n  {shown}"
    print(summary)


def on(*node_counts: int) -> pytest.MarkDecorator:
    """Run a checker on so many nodes; what is not on one node is long."""
    return pytest.mark.parametrize(
        "node_count",
        [pytest.param(n, marks=[pytest.mark.long] * (n > 1)) for n in node_counts],
    )
