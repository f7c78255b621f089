"""JSON bodies of tokens."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from goq.api.schemas.base import Input, Output
from goq.api.values import DateTime, Duration


class NewToken(Input):
    """A token to create: its name, its rules as ``verb:topic/group``, and how long it is valid.

    With ``cert``, the CN of a client certificate or a URI in it, the token has no secret.
    ``quotas`` bound ``publish_bytes_per_s``, ``publish_messages_per_s``, ``requests_per_s``,
    ``stored_bytes``, ``in_flight``, and of each tenant ``tenant_publish_bytes_per_s`` and
    ``tenant_publish_messages_per_s``. With ``aws`` it has a key pair for AWS SDKs.
    """

    name: str
    allow: list[str]
    expires: Duration | None = None
    cert: str | None = None
    quotas: dict[str, str | int] = msgspec.field(default_factory=dict)
    aws: bool | None = None


class Rotation(Input):
    """How long the secret of before is still valid."""

    grace: Duration = "0"


class TokenOut(Output, kw_only=True):
    """A token without its secret; ``last_used`` is a day."""

    id: str
    name: str
    allow: list[str]
    created: DateTime
    expires: DateTime | UnsetType = UNSET
    revoked: DateTime | UnsetType = UNSET
    last_used: str | UnsetType = UNSET
    cert: str | UnsetType = UNSET
    quotas: dict[str, str] | UnsetType = UNSET
    aws: bool | UnsetType = UNSET


class CreatedTokenOut(TokenOut, kw_only=True):
    """A token with its secret, which is shown this once; one for a certificate has none."""

    token: str | UnsetType = UNSET
    aws_access_key_id: str | UnsetType = UNSET
    aws_secret_access_key: str | UnsetType = UNSET


class TokensOut(msgspec.Struct):
    """All tokens."""

    tokens: list[TokenOut]


class PrincipalOut(Output, kw_only=True):
    """The sender of the request; ``auth`` is "off" where the node asks for no tokens."""

    auth: str
    id: str
    name: str
    allow: list[str]
    expires: DateTime | UnsetType = UNSET
