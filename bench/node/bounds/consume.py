"""Messages received and settled."""

from __future__ import annotations

import time
from typing import Any

from bench.node.bounds.work import FRAMES, JSON, Answer, Request, Rows, Work
from goq.frame.encoder import Columns

ROWS = Rows()


def _receiving(work: Work, topic: str, group: str, accept: str) -> Request:
    path = f"/v1/topics/{topic}/groups/{group}/receive"
    body = {"max_messages": 10_000, "visibility": "1h"}
    return lambda: work.caller.call("POST", path, body, accept=accept)


@ROWS.add
def receive_json(work: Work) -> Request:
    return _receiving(work, work.wide(), "g", JSON)


@ROWS.add
def receive_frames(work: Work) -> Request:
    return _receiving(work, work.wide(), "g", FRAMES)


@ROWS.add
def receive_plain_json(work: Work) -> Request:
    return _receiving(work, work.plain(), "g", JSON)


@ROWS.add
def receive_large_frame_cut(work: Work) -> Request:
    topic = work.topic("large")
    work.publish(topic, Columns([b"x" * 250] * 60_000))
    work.receive(topic, "g", 9_000)
    return _receiving(work, topic, "g", FRAMES)


def _settling(work: Work, verb: str, **more: Any) -> Request:
    receipts = work.receive(work.wide(), "g")
    path = f"/v1/topics/wide/groups/g/{verb}"
    return lambda: work.caller.call("POST", path, {"receipts": receipts, **more})


@ROWS.add
def ack(work: Work) -> Request:
    return _settling(work, "ack")


@ROWS.add
def extend(work: Work) -> Request:
    return _settling(work, "extend", visibility="2h")


@ROWS.add
def nack(work: Work) -> Request:
    return _settling(work, "nack", delay="1h", reason="r" * 1000)


@ROWS.add
def reject(work: Work) -> Request:
    return _settling(work, "reject", reason="r")


@ROWS.add
def release(work: Work) -> Request:
    return _settling(work, "release")


@ROWS.add
def receive_behind_keys(work: Work) -> Request:
    return _receiving(work, work.keyed(), "g", JSON)


@ROWS.add
def expiry(work: Work) -> Request:
    """The leases of 10,000 messages end together."""
    body = {"max_messages": 10_000, "visibility": "4s", "consumer": "c"}
    work.caller.do("POST", f"/v1/topics/{work.wide()}/groups/e/receive", body)

    def wait() -> Answer:
        time.sleep(5)
        return work.caller.call("GET", "/livez")

    return wait


@ROWS.add
def expiry_of_a_group_deleted(work: Work) -> Request:
    return lambda: work.caller.call("DELETE", f"/v1/topics/{work.wide()}/groups/e")
