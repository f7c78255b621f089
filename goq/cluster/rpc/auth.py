"""Signatures of calls between nodes: HMAC-SHA256 under the cluster secret, with replay protection.

A signature covers every field of the call, each prefixed by its length. The fields name the *boot*
of the called node (drawn at its start), the *session* of the caller (drawn at its start) and a
number that the caller never repeats in a session. So a call recorded before the callee's start, a
call to another node and a call that was received already are all refused. The response is signed
with the same fields.

Nothing is encrypted: use TLS where others can read the network.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from goq import limits
from goq.errors import NotAllowed

_WINDOW = 4096  # calls of a session that may arrive out of order


class CallId(NamedTuple):
    """The fields that distinguish one call from all others, and the disk id of its node."""

    node: str
    boot: str
    session: str
    number: int
    disk: str = ""


def new_nonce() -> str:
    """Draw a boot or session id."""
    return secrets.token_hex(16)


class CallSigner:
    """Signs and verifies calls and responses with the cluster secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign_head(self, call: CallId, path: str, body_digest: bytes) -> str:
        """Return the signature of a call by the SHA-256 of its body."""
        return self._sign("call", call, [path.encode(), body_digest])

    def sign_response(self, call: CallId, status: int, body_digest: bytes) -> str:
        """Return the signature of the response to a call by the SHA-256 of its body."""
        return self._sign("answer", call, [str(status).encode(), body_digest])

    def verify(self, expected: str, given: str) -> None:
        """Raise ``NotAllowed`` if a signature differs from the expected one."""
        if not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
            raise NotAllowed("the other side does not have the secret of this cluster")

    def _sign(self, purpose: str, call: CallId, rest: list[bytes]) -> str:
        parts = [purpose.encode(), *(str(field).encode() for field in call), *rest]
        signed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._secret, signed, "sha256").hex()


async def response_digest(body: Sequence[bytes | memoryview]) -> bytes:
    """Return the SHA-256 of the body of a response.

    That of a large one, which has frames for a replica that catches up, takes milliseconds. A
    thread computes it, so that publishes do not wait.
    """
    if sum(map(len, body)) <= limits.RPC_DIGEST_INLINE_BYTES_MAX:
        return _digest(body)
    return await asyncio.to_thread(_digest, body)


def _digest(body: Sequence[bytes | memoryview]) -> bytes:
    digest = sha256()
    for part in body:
        digest.update(part)
    return digest.digest()


class ReplayWindow:
    """The call numbers that a session has used, in bounded memory.

    A sliding window as in IPsec (RFC 4303, 3.4.3): numbers far below the highest are refused.
    """

    def __init__(self) -> None:
        self._highest = 0
        self._recent: set[int] = set()

    def accept(self, number: int) -> None:
        """Mark a number as used; raise ``NotAllowed`` if it was used or is too old to tell."""
        if number in self._recent or number <= self._highest - _WINDOW:
            raise NotAllowed("this call was made before")
        self._recent.add(number)
        if number > self._highest:
            self._highest = number
            if len(self._recent) > 2 * _WINDOW:
                self._recent = {n for n in self._recent if n > number - _WINDOW}
