"""The side that is called: it checks who calls, then does what it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from goq import limits
from goq.cluster.rpc.auth import CallMark, Heard, Prover, new_nonce
from goq.errors import GoqError, InvalidInput, NotAllowed, RouteNotFound

Answer = Sequence[bytes | memoryview]
Work = Callable[[str, bytes], Awaitable[Answer]]
"""Does what a node, by name, asks for in some bytes; returns the answer in pieces."""

BOOT = "goq-boot"
PROOF = "goq-proof"
NODE = "goq-node"
SESSION = "goq-session"
NUMBER = "goq-number"
DISK = "goq-disk"


class Answered(NamedTuple):
    """An answer as HTTP has it; the proof goes in a header of its own."""

    status: int
    body: Answer
    headers: dict[str, str]


class Answering:
    """What other nodes may ask of this one, by path.

    ``is_known`` says whether a node comes with the disk that it is known with: another has lost
    what it had. Such a node may ask for what is in ``anyone`` only.
    """

    def __init__(
        self,
        secret: bytes,
        works: Mapping[str, Work],
        *,
        anyone: frozenset[str] = frozenset(),
        is_known: Callable[[str, str], bool] = lambda _node, _disk: True,
    ) -> None:
        self.boot = new_nonce()
        self._anyone = anyone
        self._is_known = is_known
        self._prover = Prover(secret)
        self._works = works
        self._heard: dict[tuple[str, str], Heard] = {}

    async def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answered:
        """Answer a call; who cannot prove itself learns this node's boot and nothing else."""
        try:
            mark = self._admit(path, headers, body)
        except GoqError as error:
            return Answered(error.http_status, [error.code.encode()], {BOOT: self.boot})
        try:
            self._check_disk(path, mark)
            status, answer = 200, await self._work(path)(mark.node, body)
        except GoqError as error:
            status, answer = error.http_status, [f"{error.code}\n{error.detail}".encode()]
        return Answered(status, answer, {PROOF: self._prover.of_answer(mark, status, answer)})

    def _admit(self, path: str, headers: Mapping[str, str], body: bytes) -> CallMark:
        number = headers.get(NUMBER, "")
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            raise InvalidInput("this is for nodes of the cluster alone")
        names = (headers.get(NODE, ""), headers.get(BOOT, ""), headers.get(SESSION, ""))
        mark = CallMark(*names, int(number), headers.get(DISK, ""))
        self._prover.check(self._prover.of_call(mark, path, body), headers.get(PROOF, ""))
        if mark.boot != self.boot:
            raise NotAllowed("this node was started anew")
        session = (mark.node, mark.session)
        heard = self._heard.get(session)
        if heard is None:
            if len(self._heard) >= limits.CALL_SESSIONS_MAX:
                del self._heard[next(iter(self._heard))]
            heard = self._heard[session] = Heard()
        heard.take(mark.number)
        return mark

    def _check_disk(self, path: str, mark: CallMark) -> None:
        if path not in self._anyone and not self._is_known(mark.node, mark.disk):
            raise NotAllowed(
                f"{mark.node} comes with another disk than the cluster knows it with, and is not"
                " listened to"
            )

    def _work(self, path: str) -> Work:
        work = self._works.get(path)
        if work is None:
            raise RouteNotFound(f"this version of goq knows no call {path}")
        return work
