"""Server side of calls between nodes: authenticates the caller, then dispatches by path.

The HTTP server passes every request under ``CALL_PREFIX`` to :meth:`RpcServer.handle`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from goq import limits
from goq.cluster.rpc.auth import (
    CallId,
    CallSigner,
    ReplayWindow,
    new_nonce,
    response_digest,
)
from goq.errors import (
    BY_CODE,
    GoqError,
    InvalidInput,
    NotAllowed,
    NotLeader,
    RouteNotFound,
)

ResponseBody = Sequence[bytes | memoryview]
RpcHandler = Callable[[str, bytes], Awaitable[ResponseBody]]
"""Handles a call from a node, given by name, with a body; returns the response in pieces."""

_log = logging.getLogger("goq.cluster")
_SHA256_HEX = re.compile(r"[0-9a-f]{64}")
CALL_PREFIX = "/internal/"
"""The path prefix of all calls between nodes."""

BOOT_HEADER = "goq-internal-boot"
PROOF_HEADER = "goq-internal-proof"
NODE_HEADER = "goq-internal-node"
SESSION_HEADER = "goq-internal-session"
NUMBER_HEADER = "goq-internal-number"
DISK_HEADER = "goq-internal-disk"
DIGEST_HEADER = "goq-internal-digest"
"""The SHA-256 of the body: with it the head alone proves who sends a body."""
AUTHENTICATION_HEADERS = frozenset(
    {
        BOOT_HEADER,
        PROOF_HEADER,
        NODE_HEADER,
        SESSION_HEADER,
        NUMBER_HEADER,
        DISK_HEADER,
        DIGEST_HEADER,
    }
)


class RefusableBody(list[bytes | memoryview]):
    """An answer that holds something for its caller, as leases.

    Where it cannot be sent, ``on_refused`` gives that back, and the caller asks in another way.
    """

    def __init__(self, pieces: Sequence[bytes | memoryview], on_refused: Callable[[], None]):
        super().__init__(pieces)
        self.on_refused = on_refused


class RpcResponse(NamedTuple):
    """An HTTP response to a call; the signature is one of the headers."""

    status: int
    body: ResponseBody
    headers: dict[str, str]


def error_body(error: GoqError) -> ResponseBody:
    """Return the body of an answer that is an error."""
    return [f"{error.code}\n{error.detail}".encode()]


def error_of(body: bytes) -> GoqError:
    """Return the error in the body of an answer."""
    code, _, detail = body.decode(errors="replace").partition("\n")
    return BY_CODE.get(code, GoqError)(detail)


class RpcServer:
    """Handles the calls that other nodes may make, by path.

    ``is_known_disk`` returns whether a node presents the disk id that the cluster knows it by. A
    node with another disk has lost its data. It may only call the paths in ``open_calls``.
    ``has_head_proofs`` returns whether all nodes send the digest of a body with its head.
    """

    def __init__(
        self,
        secret: bytes,
        handlers: Mapping[str, RpcHandler],
        *,
        open_calls: frozenset[str] = frozenset(),
        is_known_disk: Callable[[str, str], bool] = lambda _node, _disk: True,
        has_head_proofs: Callable[[], bool] = lambda: True,
    ) -> None:
        self.boot = new_nonce()
        self._has_head_proofs = has_head_proofs
        self._strangers: set[str] = set()
        self._open_calls = open_calls
        self._is_known_disk = is_known_disk
        self._signer = CallSigner(secret)
        self._handlers = handlers
        self._windows: dict[tuple[str, str], ReplayWindow] = {}

    async def handle(self, path: str, headers: Mapping[str, str], body: bytes) -> RpcResponse:
        """Handle a call. A caller that fails authentication learns this node's boot id only."""
        try:
            call = self._verify(path, headers, body)
            self._accept(call)
        except GoqError as error:
            return RpcResponse(error.http_status, [error.code.encode()], {BOOT_HEADER: self.boot})
        status, answer = await self.answer(call.node, call.disk, path, body)
        proof = self._signer.sign_response(call, status, await response_digest(answer))
        return RpcResponse(status, answer, {PROOF_HEADER: proof})

    async def answer(
        self, node: str, disk: str, path: str, body: bytes
    ) -> tuple[int, ResponseBody]:
        """Answer an authenticated call; return a status and a body."""
        try:
            self._check_disk(path, node, disk)
            return 200, await self._handler(path)(node, body)
        except GoqError as error:
            return error.http_status, error_body(error)

    def authenticate(self, what: str, headers: Mapping[str, str], body: bytes) -> str:
        """Return the node that sent a request; ``what`` is the signed text besides the body.

        Raises ``InvalidInput`` and ``NotAllowed``, and ``NotLeader`` for a sender that does not
        know of this node's restart yet.
        """
        call = self._verify(what, headers, body)
        if call.boot != self.boot:
            raise NotLeader("this node was restarted; send again", retry_after_ms=500)
        self._accept(call)
        self._check_disk(what, call.node, call.disk)
        return call.node

    def check_head(self, what: str, headers: Mapping[str, str]) -> None:
        """Raise ``InvalidInput`` or ``NotAllowed`` for a request that no node has signed, before
        its body is read. The whole request is checked again.
        """
        digest = headers.get(DIGEST_HEADER)
        if digest is None and not self._has_head_proofs():
            return
        if digest is None or _SHA256_HEX.fullmatch(digest) is None:
            raise InvalidInput("this is for nodes of the cluster alone")
        self._verify_head(what, headers, bytes.fromhex(digest))

    def _verify(self, path: str, headers: Mapping[str, str], body: bytes) -> CallId:
        return self._verify_head(path, headers, sha256(body).digest())

    def _verify_head(self, path: str, headers: Mapping[str, str], digest: bytes) -> CallId:
        number = headers.get(NUMBER_HEADER, "")
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            raise InvalidInput("this is for nodes of the cluster alone")
        call = CallId(
            headers.get(NODE_HEADER, ""),
            headers.get(BOOT_HEADER, ""),
            headers.get(SESSION_HEADER, ""),
            int(number),
            headers.get(DISK_HEADER, ""),
        )
        expected = self._signer.sign_head(call, path, digest)
        try:
            self._signer.verify(expected, headers.get(PROOF_HEADER, ""))
        except NotAllowed:
            self._log_stranger(call.node)
            raise
        return call

    def _accept(self, call: CallId) -> None:
        """Mark a call as received; raise ``NotAllowed`` if it was, perhaps before the start."""
        if call.boot != self.boot:
            raise NotAllowed("this node was restarted")
        session = (call.node, call.session)
        window = self._windows.get(session)
        if window is None:
            if len(self._windows) >= limits.RPC_SESSIONS_MAX:
                del self._windows[next(iter(self._windows))]
            window = self._windows[session] = ReplayWindow()
        window.accept(call.number)

    def _log_stranger(self, node: str) -> None:
        """Log once that a node has another secret; its name is not authenticated."""
        if node not in self._strangers and len(self._strangers) < limits.CLUSTER_NODES_MAX:
            self._strangers.add(node)
            _log.error(
                "a call in the name of node %r is refused: it is signed with another secret;"
                " compare cluster.secret_file on both",
                node[:100],
            )

    def _check_disk(self, path: str, node: str, disk: str) -> None:
        if path not in self._open_calls and not self._is_known_disk(node, disk):
            raise NotAllowed(
                f"{node} presents another disk than the cluster knows it by; its calls are refused"
            )

    def _handler(self, path: str) -> RpcHandler:
        handler = self._handlers.get(path)
        if handler is None:
            raise RouteNotFound(f"this version of goq has no call {path}")
        return handler
