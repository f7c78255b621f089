"""Who is alive: every node tells the one that runs the controller, again and again."""

from __future__ import annotations

from typing import Any

import msgspec

from goq.cluster.controller.node_liveness import Heartbeat
from goq.errors import InvalidInput


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    incarnation: int
    unfit_reason: str
    deleted: list[int]
    damaged: list[tuple[int, int]]
    repaired: list[tuple[int, int]]
    stopping: bool
    disk: str


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return a heartbeat as bytes."""
    return msgspec.msgpack.encode(
        _Wire(
            heartbeat.incarnation,
            heartbeat.unfit_reason,
            sorted(heartbeat.deleted),
            sorted(heartbeat.damaged),
            sorted(heartbeat.repaired),
            heartbeat.stopping,
            heartbeat.disk,
        )
    )


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Return a heartbeat; raise ``InvalidInput`` if the bytes are none."""
    try:
        wire: Any = msgspec.msgpack.decode(data, type=_Wire)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"this is no heartbeat: {error}") from None
    return Heartbeat(
        wire.incarnation,
        wire.unfit_reason,
        frozenset(wire.deleted),
        frozenset(wire.damaged),
        frozenset(wire.repaired),
        wire.stopping,
        wire.disk,
    )
