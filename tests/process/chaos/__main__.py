"""``python -m tests.process.chaos [--minutes 30] [--seed N]``: strike a cluster, print results."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.process.chaos.rounds import for_minutes, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    faults = for_minutes(arguments.minutes, random.Random(arguments.seed))
    with tempfile.TemporaryDirectory(prefix="goq-chaos-") as folder:
        say = partial(print, file=sys.stderr, flush=True)
        outcome = run(Path(folder), str(arguments.seed), faults, say)
    print(outcome.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
