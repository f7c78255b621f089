"""Threads that work on nodes, and the blows that nodes get meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.support.eventually import eventually
from tests.support.ledger.promises.ledger import Ledger
from tests.support.ledger.promises.rounds import Round
from tests.support.node.node_process import NodeProcess

Blow = Callable[[NodeProcess, random.Random], None]
Work = Callable[[random.Random, threading.Event], None]
"""What a thread does, by its own chance, until the event is set."""


def killed(node: NodeProcess, _chance: random.Random) -> None:
    node.kill()
    node.start()


def stopped(node: NodeProcess, _chance: random.Random) -> None:
    assert node.stop(seconds=60) == 0
    node.start()


def paused(node: NodeProcess, chance: random.Random) -> None:
    """Let a node stand still, often for longer than leases last."""
    with node.paused():
        threading.Event().wait(chance.uniform(0.3, 0.9))


BLOWS: tuple[Blow, ...] = (killed, paused, stopped)


def publishing(
    each: Round,
    ledger: Ledger,
    a_message: Callable[[random.Random], Mapping[str, Any]],
    sizes: Sequence[int],
    pauses_s: Sequence[float],
) -> Work:
    """Return the work of a producer: batches of some of the sizes, and a pause after each."""

    def work(chance: random.Random, over: threading.Event) -> None:
        with each.connect() as wire:
            while not over.is_set():
                ledger.publish(wire, [a_message(chance) for _ in range(chance.choice(sizes))])
                over.wait(chance.choice(pauses_s))

    return work


def under_blows(
    each: Round, works: list[Work], *, blows: int, progress: Callable[[], int], by: int = 60
) -> None:
    """Run each work in a thread while nodes get so many blows, one node at a time.

    A blow comes at a random moment after ``by`` more steps of progress. Return when all threads
    have ended; all nodes are healthy then. Raises what a thread raised.
    """
    over = threading.Event()
    errors: list[BaseException] = []

    def run(work: Work, chance: random.Random) -> None:
        try:
            work(chance, over)
        except BaseException as error:
            errors.append(error)
            over.set()

    threads = [threading.Thread(target=run, args=(work, each.new_chance())) for work in works]
    for thread in threads:
        thread.start()
    try:
        for number in range(blows):
            _wait_for(progress, progress() + by, over)
            if over.wait(each.chance.uniform(0, 0.2)):
                break
            BLOWS[number % len(BLOWS)](each.chance.choice(each.nodes), each.chance)
            each.wait_until_healthy()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    for error in errors:
        raise error


def _wait_for(progress: Callable[[], int], steps: int, over: threading.Event) -> None:
    eventually(lambda: over.is_set() or progress() >= steps, f"{steps} steps are done")
