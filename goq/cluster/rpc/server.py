"""The side that is called: it checks who calls, then does what it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from goq import limits
from goq.cluster.rpc.auth import CallId, CallSigner, ReplayWindow, new_nonce
from goq.errors import GoqError, InvalidInput, NotAllowed, RouteNotFound

ResponseBody = Sequence[bytes | memoryview]
RpcHandler = Callable[[str, bytes], Awaitable[ResponseBody]]
"""Does what a node, by name, asks for in some bytes; returns the answer in pieces."""

BOOT_HEADER = "goq-boot"
PROOF_HEADER = "goq-proof"
NODE_HEADER = "goq-node"
SESSION_HEADER = "goq-session"
NUMBER_HEADER = "goq-number"
DISK_HEADER = "goq-disk"


class RpcResponse(NamedTuple):
    """An answer as HTTP has it; the proof goes in a header of its own."""

    status: int
    body: ResponseBody
    headers: dict[str, str]


class RpcServer:
    """What other nodes may ask of this one, by path.

    ``is_known`` says whether a node comes with the disk that it is known with: another has lost
    what it had. Such a node may ask for what is in ``anyone`` only.
    """

    def __init__(
        self,
        secret: bytes,
        works: Mapping[str, RpcHandler],
        *,
        anyone: frozenset[str] = frozenset(),
        is_known: Callable[[str, str], bool] = lambda _node, _disk: True,
    ) -> None:
        self.boot = new_nonce()
        self._anyone = anyone
        self._is_known = is_known
        self._prover = CallSigner(secret)
        self._works = works
        self._heard: dict[tuple[str, str], ReplayWindow] = {}

    async def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> RpcResponse:
        """Answer a call; who cannot prove itself learns this node's boot and nothing else."""
        try:
            mark = self._admit(path, headers, body)
        except GoqError as error:
            return RpcResponse(error.http_status, [error.code.encode()], {BOOT_HEADER: self.boot})
        try:
            self._check_disk(path, mark)
            status, answer = 200, await self._work(path)(mark.node, body)
        except GoqError as error:
            status, answer = error.http_status, [f"{error.code}\n{error.detail}".encode()]
        return RpcResponse(
            status, answer, {PROOF_HEADER: self._prover.of_answer(mark, status, answer)}
        )

    def _admit(self, path: str, headers: Mapping[str, str], body: bytes) -> CallId:
        number = headers.get(NUMBER_HEADER, "")
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            raise InvalidInput("this is for nodes of the cluster alone")
        names = (
            headers.get(NODE_HEADER, ""),
            headers.get(BOOT_HEADER, ""),
            headers.get(SESSION_HEADER, ""),
        )
        mark = CallId(*names, int(number), headers.get(DISK_HEADER, ""))
        self._prover.check(self._prover.of_call(mark, path, body), headers.get(PROOF_HEADER, ""))
        if mark.boot != self.boot:
            raise NotAllowed("this node was started anew")
        session = (mark.node, mark.session)
        heard = self._heard.get(session)
        if heard is None:
            if len(self._heard) >= limits.CALL_SESSIONS_MAX:
                del self._heard[next(iter(self._heard))]
            heard = self._heard[session] = ReplayWindow()
        heard.take(mark.number)
        return mark

    def _check_disk(self, path: str, mark: CallId) -> None:
        if path not in self._anyone and not self._is_known(mark.node, mark.disk):
            raise NotAllowed(
                f"{mark.node} comes with another disk than the cluster knows it with, and is not"
                " listened to"
            )

    def _work(self, path: str) -> RpcHandler:
        work = self._works.get(path)
        if work is None:
            raise RouteNotFound(f"this version of goq knows no call {path}")
        return work
