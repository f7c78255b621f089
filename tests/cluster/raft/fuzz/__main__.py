"""Run seeds by hand: ``python -m tests.cluster.raft.fuzz --seeds 1-1000``, or one with its log."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext


def main() -> int:
    from tests.cluster.raft.fuzz.libraries.ablation import ABLATIONS
    from tests.cluster.raft.fuzz.libraries.hardened import Hardened
    from tests.cluster.raft.fuzz.libraries.stock import Stock
    from tests.cluster.raft.fuzz.profile import PROFILES
    from tests.cluster.raft.fuzz.run import run

    libraries = {"stock": Stock, "hardened": Hardened}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1-100", help="A-B; of a single one the log is printed")
    parser.add_argument("--library", choices=sorted(libraries), default="hardened")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="any")
    parser.add_argument("--without", choices=sorted(ABLATIONS), help="a mend to take out")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    total: Counter[str] = Counter()
    bad, began = 0, time.monotonic()
    for seed in seeds:
        library = libraries[arguments.library]()
        log = print if len(seeds) == 1 else None
        with ABLATIONS[arguments.without]() if arguments.without else nullcontext():
            outcome = run(seed, library, PROFILES[arguments.profile](seed), log=log)
        total += outcome.counts
        bad += bool(outcome.broken)
        for what in outcome.broken[:3]:
            print(f"seed {seed}: {what}", flush=True)
        done = seed - seeds[0] + 1
        if done % 100 == 0:
            print(f"{done} seeds, {bad} bad, {time.monotonic() - began:.0f} s", flush=True)
    for what, count in sorted(total.items()):
        print(f"{count:9} {what}")
    print(f"{bad} of {len(seeds)} seeds are bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
