"""``python -m bench [--quick] [--only NAME] [--json FILE]``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from bench.cluster import copying, members, partitions, rolling
from bench.harness.machine import facts
from bench.harness.report import line, save, table
from bench.harness.rows import Result, Work, measure
from bench.harness.servers import RedisServer
from bench.log import background, backups, past, trace
from bench.messages import (
    backlog,
    batches,
    consuming,
    dedup,
    delays,
    fairness,
    latency,
    mixed,
    singles,
    waiting,
)
from bench.node import commands, console, lookers, security, sqs
from bench.pipeline import export

WORKS: list[Work] = [
    *singles.WORKS,
    *batches.WORKS,
    *consuming.WORKS,
    *latency.WORKS,
    *fairness.WORKS,
    *commands.WORKS,
    *mixed.WORKS,
    *backlog.WORKS,
    *delays.WORKS,
    *dedup.WORKS,
    *waiting.WORKS,
    *lookers.WORKS,
    *console.WORKS,
    *background.WORKS,
    *backups.WORKS,
    *trace.WORKS,
    *past.WORKS,
    *export.WORKS,
    *members.WORKS,
    *copying.WORKS,
    *partitions.WORKS,
    *rolling.WORKS,
    *security.WORKS,
    *sqs.WORKS,
]
QUICK_SCALE = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure this machine.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--repetitions", metavar="N", type=int, default=3, help="default 3")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="rows whose name begins so; repeatable"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    parser.add_argument("--no-redis", action="store_true", help="measure goq alone")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    arguments = parser.parse_args()
    works = [work for work in WORKS if _is_wanted(work, arguments.only)]
    if arguments.list:
        print("\n".join(f"{row.name:22} {row.text}" for work in works for row in work.rows))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    with_redis = not arguments.no_redis and RedisServer.is_installed()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as name:
        machine = facts(Path(name))
        for number, work in enumerate(works):
            measured = measure(
                work,
                Path(name) / str(number),
                scale=QUICK_SCALE if arguments.quick else 1.0,
                repetitions=arguments.repetitions,
                redis=with_redis,
            )
            results.extend(measured)
            print("\n".join(map(line, measured)), file=sys.stderr, flush=True)
    print("\n".join(f"{fact}: {value}" for fact, value in machine.items()))
    print(f"\n{table(results)}")
    if arguments.json is not None:
        save(arguments.json, machine, results)
    return 1 if any(result.note for result in results) else 0


def _is_wanted(work: Work, only: list[str] | None) -> bool:
    return only is None or any(row.name.startswith(name) for row in work.rows for name in only)


if __name__ == "__main__":
    sys.exit(main())
