"""The leader's side of fetching: the sessions of followers, and what each is told next."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from itertools import islice

from goq import limits
from goq.cluster.replication.leader import FramedUpdate, LeaderReplica, refusal_of
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, PartitionKey, Position

_PIECES_PER_S = 4


class Throttle:
    """Says when the next piece may be sent, and how large; ``bytes_per_s`` 0 is no bound."""

    def __init__(self, bytes_per_s: int = 0) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    def wait_ms(self, now_ms: int) -> float:
        """Return how long to wait before anything may be sent, 0 for not at all."""
        return max(self._free_ms - now_ms, 0.0) if self.bytes_per_s else 0.0

    @property
    def piece_bytes(self) -> int:
        """How much to send at once; a larger frame still goes whole."""
        if not self.bytes_per_s:
            return limits.FETCH_LOG_BYTES_MAX
        piece = max(self.bytes_per_s // _PIECES_PER_S, limits.REASSIGNMENT_CHUNK_BYTES_MIN)
        return min(piece, limits.FETCH_LOG_BYTES_MAX)

    def sent(self, size_bytes: int, now_ms: int) -> None:
        """Take note of what was sent."""
        if self.bytes_per_s:
            self._free_ms = max(self._free_ms, now_ms) + size_bytes * 1000 / self.bytes_per_s


class _Session:
    """What a follower asked for last: where it is, and where the answer will have led it."""

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.positions: dict[PartitionKey, Position] = {}
        self.expected: dict[PartitionKey, LogOffsets] = {}
        self.starts: dict[PartitionKey, LogOffsets] = {}
        """Where the leader's logs began when the follower was told last."""
        self.sound: dict[PartitionKey, Position] = {}
        """Positions up to which the follower's logs are known to be parts of the leader's.

        One that is not counts for nothing: what a follower has there may be another leader's."""
        self.todo: dict[PartitionKey, None] = {}
        """Partitions to look at, in the order in which their turn comes."""
        self.news = asyncio.Event()

    def move(self, position: Position) -> None:
        self.positions[position.key] = position
        self.sound.pop(position.key, None)
        if self.expected.get(position.key) == position.ends:
            self.sound[position.key] = position
        self.look_at(position.key)

    def unexpect(self, key: PartitionKey) -> None:
        """Another leadership begins: nothing is known of where the follower is in it."""
        for known in (self.expected, self.starts, self.sound):
            known.pop(key, None)

    def forget(self, key: PartitionKey) -> None:
        self.positions.pop(key, None)
        self.unexpect(key)
        self.todo.pop(key, None)

    def expect(self, key: PartitionKey, ends: LogOffsets | None) -> None:
        if ends is None:
            self.expected.pop(key, None)
        elif key in self.positions:
            self.expected[key] = ends

    def look_at(self, key: PartitionKey) -> None:
        self.todo.setdefault(key)
        self.news.set()


class FetchServer:
    """Answers followers from the partitions that this node leads."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._leading: dict[PartitionKey, LeaderReplica] = {}
        self._sessions: dict[str, _Session] = {}
        self._pacer = Throttle()
        self._in_the_making: Mapping[PartitionKey, frozenset[str]] = {}

    def pace(self, bytes_per_s: int, in_the_making: Mapping[PartitionKey, frozenset[str]]) -> None:
        """Say which nodes copy which partitions because of moves, and how fast all may together."""
        self._in_the_making = in_the_making
        if bytes_per_s != self._pacer.bytes_per_s:
            self._pacer = Throttle(bytes_per_s)
            for session in self._sessions.values():
                session.news.set()

    def lead(self, leading: LeaderReplica) -> None:
        """Take up a partition, or a new leadership of one; followers may have come before."""
        self._leading[leading.key] = leading
        for session in self._sessions.values():
            session.unexpect(leading.key)
            if leading.key in session.positions:
                session.look_at(leading.key)

    def resign(self, key: PartitionKey) -> None:
        """Let go of a partition: who asks for it is told so."""
        self._leading.pop(key, None)
        self.appended(key)

    def appended(self, key: PartitionKey) -> None:
        """Take note that there is something new to fetch in a partition."""
        for session in self._sessions.values():
            if key in session.positions:
                session.look_at(key)

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[memoryview]]:
        """Return what is new for a follower, when there is something or its time is over."""
        session = self._session_of(request)
        if session is None:
            return FetchResponse([], unknown_session=True), []
        now_ms = _now_ms()
        for key in request.forgotten:
            session.forget(key)
        for position in request.positions:
            session.move(position)
            leading = self._leading.get(position.key)
            if leading is not None:
                self._note(leading, session, position, now_ms)
        self._still_there(request, session, now_ms)
        self._hear(request, session)
        if not session.todo or not any(map(partial(self._has_news, session), session.todo)):
            await self._wait(session, request.wait_ms)
        return await self._answer(session)

    def _session_of(self, request: FetchRequest) -> _Session | None:
        session = self._sessions.get(request.node)
        if request.is_new:
            if session is not None:
                session.news.set()
            session = self._sessions[request.node] = _Session(request.node, request.session)
        return session if session is not None and session.number == request.session else None

    def _still_there(self, request: FetchRequest, session: _Session, now_ms: int) -> None:
        """Who asks again without having moved has had everything until now where it had it."""
        moved = {position.key for position in request.positions}
        for key, position in session.positions.items():
            leading = self._leading.get(key)
            if key not in moved and leading is not None and leading.progress.ends == position.ends:
                self._note(leading, session, position, now_ms)

    def _hear(self, request: FetchRequest, session: _Session) -> None:
        for key, position in list(session.positions.items()):
            leading = self._leading.get(key)
            if leading is not None and leading.leader_epoch == position.leader_epoch:
                leading.heard(request.node, request.session)

    def _note(
        self, leading: LeaderReplica, session: _Session, position: Position, now_ms: int
    ) -> None:
        is_sound = session.sound.get(position.key) is position
        if is_sound and leading.leader_epoch == position.leader_epoch:
            leading.fetched(session.node, position.ends, now_ms)

    async def _wait(self, session: _Session, wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + min(wait_ms, limits.FETCH_WAIT_MS) / 1000
        while not any(map(partial(self._has_news, session), session.todo)):
            session.todo = {key: None for key in session.todo if self._has_more(session, key)}
            session.news.clear()
            left_s = until - loop.time()
            if left_s <= 0:
                return
            if session.todo:
                left_s = min(left_s, max(self._pacer.wait_ms(_now_ms()), 1) / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):  # wait_for may lose a cancellation
                    await session.news.wait()

    def _has_news(self, session: _Session, key: PartitionKey) -> bool:
        """Whether there is anything to tell a follower now."""
        if key not in self._leading:
            return True
        return self._has_more(session, key) and not self._is_held(session, key)

    def _has_more(self, session: _Session, key: PartitionKey) -> bool:
        """Whether there is anything to tell a follower, now or when its turn comes."""
        leading = self._leading.get(key)
        position, told = session.positions[key], session.starts.get(key)
        if leading is None or session.sound.get(key) is not position:
            return True
        return leading.has_news(position, told)

    def _is_paced(self, session: _Session, key: PartitionKey) -> bool:
        return session.node in self._in_the_making.get(key, ())

    def _is_held(self, session: _Session, key: PartitionKey) -> bool:
        """Whether a replica in the making must wait, so that moves keep to their rate."""
        return self._is_paced(session, key) and self._pacer.wait_ms(_now_ms()) > 0

    async def _answer(self, session: _Session) -> tuple[FetchResponse, list[memoryview]]:
        todo = [key for key in session.todo if self._has_news(session, key)]
        held = [key for key in session.todo if self._has_more(session, key)]
        session.todo = dict.fromkeys([*todo, *held])
        works: list[Callable[[int], FramedUpdate]] = []
        asked: list[tuple[LeaderReplica | None, Position]] = []
        for key in islice(todo, limits.FETCH_PARTITIONS_MAX):
            position, leading = session.positions[key], self._leading.get(key)
            asked.append((leading, position))
            if leading is None:
                works.append(partial(_refuse, key))
                continue
            is_checked = session.expected.get(key) == position.ends
            most = self._pacer.piece_bytes if self._is_paced(session, key) else None
            works.append(partial(_read, leading, position, is_checked, most))
        found = await asyncio.get_running_loop().run_in_executor(self._executor, _read_all, works)
        for (leading, position), news in zip(asked, found, strict=False):
            key = position.key
            if self._is_paced(session, key):
                self._pacer.sent(sum(map(len, news.buffers)), _now_ms())
            session.todo.pop(key, None)
            if leading is not None and leading is self._leading.get(key):
                self._told(leading, session, position, news)
        return FetchResponse([n.head for n in found]), [b for n in found for b in n.buffers]

    def _told(
        self, leading: LeaderReplica, session: _Session, position: Position, news: FramedUpdate
    ) -> None:
        """Take note of what a follower is told, and of what that says about where it is."""
        if session.positions.get(position.key) is not position:
            return
        session.expect(position.key, news.leads_to)
        messages, events = news.head.messages, news.head.events
        if messages is None or events is None:
            return
        session.starts[position.key] = LogOffsets(messages.start_offset, events.start_offset)
        if messages.diverges_at is None and events.diverges_at is None:
            session.sound[position.key] = position
            self._note(leading, session, position, _now_ms())


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _refuse(key: PartitionKey, _bytes_max: int) -> FramedUpdate:
    return FramedUpdate(refusal_of(key, "this node does not lead the partition"), [])


def _read(
    leading: LeaderReplica, position: Position, is_checked: bool, most: int | None, bytes_max: int
) -> FramedUpdate:
    if most is not None:
        bytes_max = min(bytes_max, most)
    return leading.news(position, is_checked=is_checked, bytes_max=bytes_max)


def _read_all(works: Iterable[Callable[[int], FramedUpdate]]) -> list[FramedUpdate]:
    """Read the news of partitions in turn until there is enough for one answer."""
    found: list[FramedUpdate] = []
    left = limits.FETCH_BYTES_MAX
    for work in works:
        if found and left <= 0:
            break
        news = work(min(limits.FETCH_LOG_BYTES_MAX, max(left, 1)))
        left -= sum(map(len, news.buffers))
        found.append(news)
    return found
