"""Whatever is done to the nodes of a cluster, what it has acknowledged is kept.

``python -m tests.process.chaos --minutes 30`` does the same for longer. ``GOQ_CHAOS_SEED``
repeats the choices of a failed run, as far as the timing of processes allows.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.process.chaos.nemesis import FAULTS
from tests.process.chaos.rounds import run

SEED = int(os.environ.get("GOQ_CHAOS_SEED") or random.SystemRandom().getrandbits(32))

_FAULTS = 5  # less than a minute's worth


def test_nothing_acknowledged_is_lost_or_comes_again_whatever_happens_to_the_nodes(
    tmp_path: Path,
) -> None:
    try:
        outcome = run(tmp_path, str(SEED), random.Random(SEED).sample(FAULTS, _FAULTS))
    except BaseException as error:
        error.add_note(f"to repeat: GOQ_CHAOS_SEED={SEED}")
        raise
    print(outcome.table())
