"""Proofs that a call and its answer come from nodes with the secret of the cluster, and are new.

A proof is HMAC-SHA256 over everything that it speaks for, each part after its length. It names the
*boot* of the node that is called, drawn at its start, the caller's *session*, drawn at its own, and
a number that the caller never uses twice in it. So what was said to a node before its start, or to
another, or was heard already, proves nothing. The answer is proven with the same number.

Nothing is kept secret by this: on a network where others listen, use TLS.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from goq.errors import NotAllowed

_WINDOW = 4096  # calls of a session that may arrive out of order


class CallId(NamedTuple):
    """What tells one call from all others, and with which disk its node comes."""

    node: str
    boot: str
    session: str
    number: int
    disk: str = ""


def new_nonce() -> str:
    """Draw a boot or a session."""
    return secrets.token_hex(16)


class CallSigner:
    """Makes and checks proofs with the secret of the cluster."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of_call(self, mark: CallId, path: str, body: bytes) -> str:
        """Return what proves a call."""
        return self._proof("call", mark, [path.encode(), sha256(body).digest()])

    def of_answer(self, mark: CallId, status: int, body: Iterable[bytes | memoryview]) -> str:
        """Return what proves the answer to a call."""
        digest = sha256()
        for part in body:
            digest.update(part)
        return self._proof("answer", mark, [str(status).encode(), digest.digest()])

    def check(self, expected: str, given: str) -> None:
        """Raise ``NotAllowed`` unless a proof is as it should be."""
        if not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
            raise NotAllowed("the other side does not have the secret of this cluster")

    def _proof(self, purpose: str, mark: CallId, rest: list[bytes]) -> str:
        parts = [purpose.encode(), *(str(field).encode() for field in mark), *rest]
        told = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._secret, told, "sha256").hex()


class ReplayWindow:
    """Which numbers of a session were used already, with bounded memory."""

    def __init__(self) -> None:
        self._highest = 0
        self._recent: set[int] = set()

    def take(self, number: int) -> None:
        """Use a number; raise ``NotAllowed`` if it was, or is too old to tell."""
        if number in self._recent or number <= self._highest - _WINDOW:
            raise NotAllowed("this call was made before")
        self._recent.add(number)
        if number > self._highest:
            self._highest = number
            if len(self._recent) > 2 * _WINDOW:
                self._recent = {n for n in self._recent if n > number - _WINDOW}
