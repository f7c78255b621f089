"""The stored record of an access token, and the rules of its changes.

A record is replaced as a whole, with its version as the condition: of two changes at once, one is
refused. A rotated token has two digests for a time.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec

from goq import limits
from goq.errors import Conflict, InvalidInput

DAY_MS: Final = 86_400_000
_CERT: Final = "cert:"


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token without its secret. Times are Unix milliseconds, 0 for none.

    ``digest`` is the SHA-256 of the secret, in hexadecimal; a token without a secret has ``cert:``
    and the name of a client certificate there, which no digest equals. The secret before the last
    rotation is valid until ``previous_until_ms``. ``last_used_day`` counts days since 1970, 0 for
    never.
    """

    id: str
    name: str
    digest: str
    rules: tuple[str, ...]
    created_ms: int
    expires_ms: int = 0
    previous_digest: str = ""
    previous_until_ms: int = 0
    revoked_ms: int = 0
    last_used_day: int = 0
    version: int = 1

    @property
    def certificate(self) -> str | None:
        """The name of the client certificate that shows the token, None for one with a secret."""
        return self.digest[len(_CERT) :] if self.digest.startswith(_CERT) else None

    def ended_ms(self) -> int:
        """Return when the token was revoked or expires, 0 for never."""
        return min((time for time in (self.revoked_ms, self.expires_ms) if time), default=0)

    def has_digest(self, digest: str, now_ms: int) -> bool:
        """Return whether a digest is of a secret of the token; the time taken does not tell how
        near it is.
        """
        if hmac.compare_digest(digest, self.digest):
            return True
        is_in_time = now_ms < self.previous_until_ms
        return is_in_time and hmac.compare_digest(digest, self.previous_digest)


def digest_of_certificate(name: str) -> str:
    """Return what stands for the digest of a token that a client certificate shows."""
    return _CERT + name


def digest_of(secret: str) -> str:
    """Return the digest by which a secret is stored."""
    return sha256(secret.encode()).hexdigest()


def check_change(tokens: Mapping[str, TokenRecord], record: TokenRecord) -> None:
    """Raise ``Conflict`` if a record does not follow the stored one, ``InvalidInput`` for one more
    than there may be."""
    known = tokens.get(record.id)
    version = 0 if known is None else known.version
    if record.version != version + 1:
        raise Conflict(f"token {record.id} was changed at the same time; try again")
    if known is None and len(without_ended(tokens, record.created_ms)) >= limits.TOKENS_MAX:
        raise InvalidInput(f"there are {limits.TOKENS_MAX} tokens, the most there may be")


def with_token(
    tokens: Mapping[str, TokenRecord], record: TokenRecord
) -> tuple[dict[str, TokenRecord], list[str]]:
    """Return the tokens with one more or another one, and the ids of those that go.

    A new token takes away those that ended long ago: a list of tokens stays readable.
    """
    kept = tokens if record.id in tokens else without_ended(tokens, record.created_ms)
    return {**kept, record.id: record}, sorted(tokens.keys() - kept.keys())


def without_ended(tokens: Mapping[str, TokenRecord], now_ms: int) -> dict[str, TokenRecord]:
    """Return the tokens without those that ended ``limits.TOKEN_ENDED_KEPT_MS`` ago."""
    oldest_ms = now_ms - limits.TOKEN_ENDED_KEPT_MS
    return {
        token_id: record
        for token_id, record in tokens.items()
        if not record.ended_ms() or record.ended_ms() > oldest_ms
    }
