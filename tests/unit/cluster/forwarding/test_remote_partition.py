"""What a node relays to the leader of a partition."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from goq.clock import ManualClock
from goq.cluster.forwarding.remote_partition import RemotePartition
from goq.cluster.rpc.frame_body import split_head
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import Attribute
from goq.frame.view import FrameView


@pytest.mark.parametrize("leader_counts_delays", [True, False])
def test_a_delay_is_relayed_to_a_leader_that_counts_it(leader_counts_delays: bool) -> None:
    clock, relayed = ManualClock(), []

    async def call(_topic: str, _number: int, _path: str, body: bytes) -> bytes:
        relayed.append(FrameView.parse(bytes(split_head(body)[1])))
        return msgspec.msgpack.encode([0, 0, False, []])

    async def run() -> None:
        partition = RemotePartition("t", 0, call, clock, lambda: leader_counts_delays)
        await partition.publish(FrameView.parse(encode_frame(Columns([b"m"], deliver_at_ms=[-5]))))

    asyncio.run(run())
    due_ms = -5 if leader_counts_delays else clock.wall_ms() + 5
    assert relayed[0].times_ms(Attribute.DELIVER_AT, 0, 1) == [due_ms]
