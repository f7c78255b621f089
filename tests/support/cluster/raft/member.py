"""A member as a process of its own: commands come as lines of JSON, answers go as such.

python -m support.raft_member FOLDER SPEC SPECS… < commands > answers
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from goq.cluster.raft.driver import RaftTiming
from goq.errors import GoqError
from tests.support.cluster.raft.group import Running

TIMING = RaftTiming(0.05, 0.4, 0.8, 1.2, log_entries=60, chunk_bytes=4096)


async def answer(member: Running, question: dict[str, Any]) -> Any:
    if question["ask"] == "set":
        return await member.set(question["key"], question["value"])
    if question["ask"] == "rows":
        await member.node.barrier(30.0)
        return member.rows()
    return {"leader": member.node.leader, "failure": member.node.status.failure}


async def handle(member: Running, question: dict[str, Any]) -> None:
    try:
        result = {"id": question["id"], "result": await answer(member, question)}
    except GoqError as error:
        result = {"id": question["id"], "error": error.detail}
    print(json.dumps(result), flush=True)


async def main(folder: str, spec: str, specs: list[str]) -> None:
    member = await Running(spec, specs, Path(folder), TIMING).start()
    print(json.dumps({"id": 0, "result": "ready"}), flush=True)
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    tasks = set()
    while line := await commands.readline():
        task = asyncio.create_task(handle(member, json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await member.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
