"""Whatever is done to a node, no confirmed publish is lost or doubled, no confirmed ack comes back.

Several producers and consumers work while the node is struck, and their ledger is checked against
what the node has afterwards. ``GOQ_KILL_SEED`` repeats the choices of a failed run, as far as the
timing of processes allows.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ledger.load import Load
from tests.support.node.node_process import NodeProcess

LONG_ROUNDS = 50
SEED = int(os.environ.get("GOQ_KILL_SEED") or random.SystemRandom().getrandbits(32))

Blow = Callable[[NodeProcess, random.Random], None]


def killed(node: NodeProcess, chance: random.Random) -> None:
    at_a_random_moment(chance, 0.3, node.kill)
    node.start()


def killed_while_it_starts(node: NodeProcess, chance: random.Random) -> None:
    node.kill()
    node.launch()
    at_a_random_moment(chance, 1.0, node.kill)
    node.start()


def killed_while_it_drains(node: NodeProcess, chance: random.Random) -> None:
    node.terminate()
    at_a_random_moment(chance, 0.05, node.kill)
    node.start()


def killed_twice(node: NodeProcess, chance: random.Random) -> None:
    killed(node, chance)
    at_a_random_moment(chance, 0.05, node.kill)
    node.start()


def stopped(node: NodeProcess, _chance: random.Random) -> None:
    assert node.stop() == 0
    node.start()


def paused_for_longer_than_a_lease(node: NodeProcess, chance: random.Random) -> None:
    node.pause()
    at_a_random_moment(chance, 0.2, node.resume, after_s=1.0)


BLOWS: tuple[Blow, ...] = (
    killed,
    killed_while_it_starts,
    killed_while_it_drains,
    killed_twice,
    paused_for_longer_than_a_lease,
)


def at_a_random_moment(
    chance: random.Random, seconds_max: float, strike: Callable[[], None], after_s: float = 0.0
) -> None:
    """Strike within ``seconds_max``; return when it is done."""
    timer = threading.Timer(after_s + chance.random() * seconds_max, strike)
    timer.start()
    timer.join()


@pytest.mark.parametrize("blow", BLOWS, ids=lambda blow: blow.__name__)
def test_every_promise_is_kept_by_a_node_that_is(blow: Blow, tmp_path: Path) -> None:
    one_round(tmp_path, f"{SEED} {blow.__name__}", [blow])


def test_a_node_that_is_stopped_under_load_ends_well_and_keeps_every_promise(
    tmp_path: Path,
) -> None:
    one_round(tmp_path, f"{SEED} stopped", [stopped])


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_ROUNDS))
def test_every_promise_is_kept_through_a_row_of_blows(number: int, tmp_path: Path) -> None:
    seed = f"{SEED} {number}"
    chance = random.Random(seed)
    one_round(tmp_path, seed, chance.choices((*BLOWS, stopped), k=chance.randint(1, 3)))


def one_round(tmp_path: Path, seed: str, blows: list[Blow]) -> None:
    """Strike a node under load with each of ``blows``, then check the ledger."""
    chance = random.Random(seed)
    partitions = chance.randint(3, 6)
    settings = (
        "defaults.topic.segment.bytes=256KiB",
        f"defaults.topic.fsync={chance.choice(('always', 'always', 'interval'))}",
    )
    try:
        with (
            NodeProcess(tmp_path / "data", settings=settings) as node,
            Load(node.url, chance.getrandbits(32), partitions).running() as load,
        ):
            for blow in blows:
                load.wait_for_progress(50)
                blow(node, chance)
            load.wait_for_progress(20)
            load.finish_and_check()
    except BaseException as error:
        names = ", ".join(blow.__name__ for blow in blows)
        error.add_note(f"blows: {names}; to repeat: GOQ_KILL_SEED={SEED}")
        raise
    print(f"{seed}: {load.ledger.summary()}")
