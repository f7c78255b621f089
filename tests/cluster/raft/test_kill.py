"""Members are killed again and again: what was acknowledged is there, once, on all of them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.raft.group import member_specs
from tests.support.effort import first_of
from tests.support.eventually import until
from tests.support.paths import REPOSITORY

WRITERS = 4


class Process:
    """One member, started and killed."""

    def __init__(self, folder: Path, spec: str, specs: list[str]) -> None:
        self.id = spec.partition("=")[0]
        self._arguments = [str(folder), spec, *specs]
        self._errors = folder / f"{self.id}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._reading: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._process is not None

    async def start(self) -> None:
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.support.cluster.raft.member", *self._arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                env=os.environ | {"PYTHONPATH": path}, limit=2**26,
            )  # fmt: skip
        ready = self._waiting[0] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(self._process))
        assert await ready == {"id": 0, "result": "ready"}, self._errors.read_text()

    async def kill(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert self._reading is not None
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await self._reading

    async def ask(self, **question: Any) -> dict[str, Any] | None:
        """Return the answer, None if the process dies before it."""
        if self._process is None or self._process.stdin is None:
            return None
        self._number += 1
        answer = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps(question | {"id": self._number}).encode() + b"\n")
        return await answer

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line.endswith(b"\n"):
                answer = json.loads(line)
                self._waiting.pop(answer["id"]).set_result(answer)
        for waiting in self._waiting.values():
            waiting.set_result(None)
        self._waiting.clear()


class Ordeal:
    """Writers that write all the time, and somebody who kills."""

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        specs = member_specs(count)
        self.members = [Process(folder, spec, specs) for spec in specs]
        self.random = random.Random(seed)
        self.acknowledged: set[str] = set()
        self.tried = 0
        self.over = False

    async def write(self) -> None:
        while not self.over:
            await until(lambda: any(member.is_up for member in self.members), seconds=120)
            up = [member for member in self.members if member.is_up]
            self.tried += 1
            key = f"key {self.tried}"
            answer = await self.random.choice(up).ask(ask="set", key=key, value="x" * 50)
            if answer is not None and "result" in answer:
                self.acknowledged.add(key)

    async def more(self, count: int) -> None:
        """Return once so many more were acknowledged."""
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted, seconds=120)

    async def leader(self) -> Process:
        while True:
            answers = await asyncio.gather(*(member.ask(ask="how") for member in self.members))
            for answer in filter(None, answers):
                for member in self.members:
                    if member.id == answer["result"]["leader"]:
                        return member
            await asyncio.sleep(0.02)

    async def victims(self, mode: str) -> list[Process]:
        if mode == "leader":
            return [await self.leader()]
        return self.random.sample(
            self.members, {"one": 1, "two": 2, "all": len(self.members)}[mode]
        )

    async def run(self, mode: str, rounds: int) -> None:
        await asyncio.gather(*(member.start() for member in self.members))
        writers = [asyncio.create_task(self.write()) for _ in range(WRITERS)]
        for _ in range(rounds):
            await self.more(self.random.randint(10, 80))
            victims = await self.victims(mode)
            await asyncio.gather(*(victim.kill() for victim in victims))
            if len(victims) < len(self.members) / 2 and self.random.random() < 0.5:
                await self.more(self.random.randint(1, 80))
            await asyncio.gather(*(victim.start() for victim in victims))
        await self.more(20)
        self.over = True
        await asyncio.gather(*writers)

    async def check(self) -> None:
        answers = [await member.ask(ask="rows") for member in self.members]
        states = [answer["result"] for answer in answers if answer and "result" in answer]
        assert len(states) == len(self.members), answers
        assert all(state == states[0] for state in states)
        assert self.acknowledged <= states[0].keys()
        assert [key for key, (_, sets) in states[0].items() if sets != 1] == []


def endure(folder: Path, count: int, mode: str, rounds: int, seed: int) -> None:
    async def main() -> None:
        ordeal = Ordeal(folder, count, seed)
        try:
            await ordeal.run(mode, rounds)
            await ordeal.check()
        finally:
            for member in ordeal.members:
                if member.is_up:
                    await member.kill()
        print(f"{mode} of {count}: {len(ordeal.acknowledged)} acknowledged of {ordeal.tried}")

    asyncio.run(main())


CASES = [(1, "one"), (3, "leader"), (3, "all"), (3, "one"), (3, "two")]


@pytest.mark.parametrize(("count", "mode"), first_of(CASES[1:] + CASES[:1], quick=2))
def test_what_was_acknowledged_survives_kills(tmp_path: Path, count: int, mode: str) -> None:
    endure(tmp_path, count, mode, rounds=3, seed=1)


@pytest.mark.long
@pytest.mark.parametrize(("count", "mode"), CASES)
@pytest.mark.parametrize("seed", [2, 3])
def test_what_was_acknowledged_survives_many_kills(
    tmp_path: Path, count: int, mode: str, seed: int
) -> None:
    endure(tmp_path, count, mode, rounds=30, seed=seed)
