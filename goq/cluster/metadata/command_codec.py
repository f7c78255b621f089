"""Codec of the commands: msgpack, with the tag of each command's name and version.

Decoding is strict: an unknown tag, an unknown or missing field, a wrong type or too many bytes
reject the command, with the same text on every node.
"""

from __future__ import annotations

from typing import Any

import msgspec

from goq import limits
from goq.cluster.metadata.commands import AnyCommand
from goq.cluster.metadata.results import CommandRejected
from goq.errors import TooLarge

_decoder: msgspec.msgpack.Decoder[AnyCommand] = msgspec.msgpack.Decoder(AnyCommand)


def encode_command(command: AnyCommand) -> bytes:
    """Encode a command; raise ``TooLarge`` if it is too large for the log."""
    data = msgspec.msgpack.encode(command, order="deterministic")
    if len(data) > limits.METADATA_COMMAND_BYTES_MAX:
        raise TooLarge(
            f"a metadata change of {len(data)} bytes is over the limit of"
            f" {limits.METADATA_COMMAND_BYTES_MAX}; change fewer settings at once"
        )
    return data


def decode_command(data: bytes) -> AnyCommand:
    """Decode a command; raise ``CommandRejected`` for other bytes."""
    if len(data) > limits.METADATA_COMMAND_BYTES_MAX:
        raise CommandRejected("too_large", f"a command of {len(data)} bytes is over the limit")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        tag = _tag(data)
        if tag is not None and tag not in TAGS:
            raise CommandRejected(
                "unknown_command", f"this version of goq does not know the command {tag[:80]!r}"
            ) from None
        raise CommandRejected("malformed_command", "the command cannot be read") from None


def _tag(data: bytes) -> str | None:
    """Return the tag that the bytes claim, or None if they are no command at all."""
    try:
        raw: Any = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    tag = raw.get("type") if isinstance(raw, dict) else None
    return tag if isinstance(tag, str) else None


TAGS = frozenset(str(kind.__struct_config__.tag) for kind in AnyCommand.__args__)
"""The names and versions of all commands."""
