"""What a script does that adds the lines of a file to a stream: ``redis_lines PORT FILE``."""

from __future__ import annotations

import sys
from itertools import islice

import redis

from bench.harness.resp import STREAM

BATCH = 1000


def main(port: int, path: str) -> None:
    with redis.Redis(port=port) as client, open(path, "rb") as lines:
        while batch := list(islice(lines, BATCH)):
            pipeline = client.pipeline(transaction=False)
            for line in batch:
                pipeline.xadd(STREAM, {"v": line[:-1]})
            pipeline.execute()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
