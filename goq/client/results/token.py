"""Tokens, and the sender of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from goq.client.results.result import Result, decode, items_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDescription(Result):
    """A token without its secret. ``last_used`` is a day in UTC, as ``2026-01-31``."""

    id: str
    name: str
    allow: tuple[str, ...]
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None
    last_used: str | None = None
    cert: str | None = None
    quotas: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedToken(TokenDescription):
    """A token with its text, which no node shows again; empty for one of a certificate.

    The key pair is that for AWS SDKs, None for a token without one.
    """

    token: str = ""
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Result):
    """The sender of a request and its rules; ``auth`` is ``off`` if the node wants no tokens."""

    auth: str
    id: str
    name: str
    allow: tuple[str, ...]
    expires: datetime | None = None


def decode_created(answer: object) -> CreatedToken:
    """Return a new token, or a new secret, from an answer."""
    return decode(CreatedToken, answer)


def decode_tokens(answer: object) -> tuple[TokenDescription, ...]:
    """Return a list of tokens from an answer."""
    return tuple(decode(TokenDescription, item) for item in items_of(answer, "tokens"))


def decode_identity(answer: object) -> Identity:
    """Return the sender of a request from an answer."""
    return decode(Identity, answer)
