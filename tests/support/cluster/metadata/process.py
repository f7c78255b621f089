"""Applies a known history to a folder, from wherever it is, until killed. Run as a program."""

from __future__ import annotations

import sys
from pathlib import Path

from goq.cluster.metadata.state_machine import MetadataStateMachine
from tests.support.cluster.metadata.machines import history, request


def main(folder: Path, seed: str, count: int) -> None:
    """Go on after the applied index; flush now and then, as Raft does."""
    commands, _ = history(seed, count)
    machine = MetadataStateMachine(folder)
    for index in range(machine.applied_index + 1, count + 1):
        machine.apply(request(commands[index - 1], index), index)
        if index % 50 == 0:
            machine.flush(index)
        print(index, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
