"""``python -m bench [--quick] [--only NAME] [--json FILE]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench import batches, commands, consuming, latency, singles
from bench.machine import facts
from bench.report import save, set_targets, table
from bench.rows import Row, measure
from bench.servers import RedisServer

ROWS: list[Row] = [
    *singles.ROWS,
    *batches.ROWS,
    *consuming.ROWS,
    *latency.ROWS,
    *commands.ROWS,
]
QUICK_SCALE = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, one repetition")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="rows whose name begins so; repeatable"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures there")
    parser.add_argument("--no-redis", action="store_true", help="measure goq alone")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if _is_wanted(row, arguments.only)]
    if arguments.list:
        print("\n".join(f"{row.name:18} {row.work}" for row in rows))
        return
    with_redis = not arguments.no_redis and RedisServer.is_installed()
    results = []
    with tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        machine = facts(folder)
        for row in rows:
            print(f"{row.name} …", file=sys.stderr, flush=True)
            results.append(
                measure(
                    row,
                    folder / row.name,
                    scale=QUICK_SCALE if arguments.quick else 1.0,
                    repetitions=1 if arguments.quick else 3,
                    redis=with_redis,
                )
            )
    set_targets(results)
    for fact, value in machine.items():
        print(f"{fact}: {value}")
    print()
    print(table(results))
    if arguments.json is not None:
        save(arguments.json, machine, results)


def _is_wanted(row: Row, only: list[str] | None) -> bool:
    return only is None or any(row.name.startswith(name) for name in only)


if __name__ == "__main__":
    main()
