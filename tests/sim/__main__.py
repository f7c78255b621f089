"""Simulate whole clusters: ``python -m tests.sim`` until Ctrl-C, or ``--seeds A-B``.

Of a single seed, ``--seeds A``, the history is printed: that is how a failing one is replayed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext

_EVERY_S = 20.0


def main() -> int:
    from tests.sim.mutations import MUTATIONS
    from tests.sim.run import run

    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", default="1-", help="A-B, A- for all from A on, or A")
    parser.add_argument("--faults-s", type=float, help="simulated seconds of faults in each life")
    parser.add_argument("--each-fault", action="store_true", help="each fault once in each life")
    parser.add_argument("--lone-fault", action="store_true", help="one long fault in each life")
    parser.add_argument("--dead-letters", action="store_true", help="messages may die")
    parser.add_argument("--alterations", action="store_true", help="the topic is altered often")
    parser.add_argument("--long", action="store_true", help="minutes of rarer faults in each life")
    parser.add_argument("--without", choices=sorted(MUTATIONS), help="a rule to take out")
    arguments = parser.parse_args()
    first, dash, last = arguments.seeds.partition("-")
    seeds: Iterable[int] = itertools.count(int(first))
    if last or not dash:
        seeds = range(int(first), int(last or first) + 1)
    log = None if dash else print
    total: Counter[str] = Counter()
    bad: list[int] = []
    began_s = told_s = time.monotonic()
    try:
        for seed in seeds:
            with MUTATIONS[arguments.without]() if arguments.without else nullcontext():
                outcome = run(
                    seed,
                    faults_s=arguments.faults_s,
                    each_fault=arguments.each_fault,
                    lone_fault=arguments.lone_fault,
                    dead_letters=arguments.dead_letters,
                    alterations=arguments.alterations,
                    is_long=arguments.long,
                    log=log,
                )
            total += outcome.counts
            if outcome.broken:
                bad.append(seed)
                for what in outcome.broken[:3]:
                    print(f"seed {seed}: {what}")
                print(f"  replay it: python -m tests.sim --seeds {seed}{_flags()}", flush=True)
            if time.monotonic() - told_s > _EVERY_S:
                told_s = time.monotonic()
                took_s = told_s - began_s
                print(f"{total['seeds']} seeds, {len(bad)} bad, {took_s:.0f} s", flush=True)
    except KeyboardInterrupt:
        print()
    for what, count in sorted(total.items()):
        print(f"{count:9} {what}")
    print(f"{len(bad)} of {total['seeds']} seeds are bad", *bad)
    return 1 if bad else 0


def _flags() -> str:
    """Return the arguments of this run besides its seeds: without them a seed is another life."""
    words = sys.argv[1:]
    if "--seeds" in words:
        at = words.index("--seeds")
        del words[at : at + 2]
    return "".join(f" {word}" for word in words if not word.startswith("--seeds="))


if __name__ == "__main__":
    sys.exit(main())
