"""Handler of the command on access tokens."""

from __future__ import annotations

from msgspec.structs import replace

from goq.access.token_record import check_change, with_token
from goq.cluster.metadata.commands import PutToken
from goq.cluster.metadata.results import Accepted, Applied, CommandRejected
from goq.cluster.metadata.state import MetadataState
from goq.errors import GoqError


def put_token(state: MetadataState, command: PutToken) -> Applied:
    """Create a token, or replace its record. ``value`` is its version."""
    token = command.token
    try:
        check_change(state.tokens, token)
    except GoqError as error:
        raise CommandRejected(error.code, error.detail) from None
    tokens, _ = with_token(state.tokens, token)
    return Applied(
        replace(state, tokens=tokens),
        Accepted(state.version, f"token {token.id} set", token.version),
    )
