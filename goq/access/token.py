"""The text of access tokens: ``goq_<id>_<secret>``, shown once.

The secret has 256 random bits, so it cannot be guessed, and SHA-256 without salt is enough to store
it. The id is not secret: logs and the list of tokens name a token by it.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

_PREFIX: Final = "goq"
_ID_CHARS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_LENGTH: Final = 8
_SECRET_BYTES: Final = 32
_TOKEN = re.compile(rf"{_PREFIX}_([A-Za-z0-9]{{1,64}})_[A-Za-z0-9_-]+")


def draw_token_id() -> str:
    """Return an id for a new token."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_LENGTH))


def draw_secret() -> str:
    """Return a secret for a new token."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def format_token(token_id: str, secret: str) -> str:
    """Return the text of a token."""
    return f"{_PREFIX}_{token_id}_{secret}"


def without_secrets(text: str) -> str:
    """Return a text in which no token has its secret."""
    return _TOKEN.sub(rf"{_PREFIX}_\1_…", text)


def split_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token's text, ``None`` for other texts."""
    prefix, _, rest = text.partition("_")
    token_id, _, secret = rest.partition("_")
    return (token_id, secret) if prefix == _PREFIX and token_id and secret else None
