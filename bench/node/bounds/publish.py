"""Messages published, as JSON and as frames."""

from __future__ import annotations

import base64
import json

from bench.node.bounds.work import (
    FRAMES,
    JSON,
    Request,
    Rows,
    Work,
    fields,
    frame_body,
    wide_columns,
)
from goq.frame.encoder import Columns

ROWS = Rows()


def _publishing(work: Work, body: bytes, kind: str = JSON) -> Request:
    topic = work.topic("published")
    return lambda: work.caller.call("POST", f"/v1/topics/{topic}/messages", body, kind=kind)


@ROWS.add
def publish_json_with_headers(work: Work) -> Request:
    headers = {f"header-{n}": "v" for n in range(64)}
    messages = [{"value": "v", "headers": headers}] * 10_000
    return _publishing(work, json.dumps({"messages": messages}).encode())


@ROWS.add
def publish_json_of_all_fields(work: Work) -> Request:
    messages = [
        {"value": f"v{n}", "key": f"k{n}", "tenant": f"t{n}", "dedup_id": f"d{n}", "delay": "1h"}
        | {"ttl": "2h", "priority": "high", "headers": {"a": "b"}, "partition": 0}
        for n in range(10_000)
    ]
    return _publishing(work, json.dumps({"messages": messages}).encode())


@ROWS.add
def publish_json_too_many(work: Work) -> Request:
    return _publishing(work, b'{"messages":[' + b",".join([b"{}"] * 8_000_000) + b"]}")


@ROWS.add
def publish_json_one_large(work: Work) -> Request:
    value = base64.b64encode(bytes(8 << 20)).decode()
    return _publishing(work, json.dumps({"messages": [{"value_base64": value}]}).encode())


@ROWS.add
def publish_frames_wide(work: Work) -> Request:
    columns = wide_columns(65_535, headers=True)
    return _publishing(work, frame_body(columns) * 2, FRAMES)


@ROWS.add
def publish_frames_compressed(work: Work) -> Request:
    body = frame_body(Columns([bytes(250)] * 60_000), compress=True) * 4
    return _publishing(work, body, FRAMES)


@ROWS.add
def publish_frames_many(work: Work) -> Request:
    return _publishing(work, frame_body(Columns([b"v"])) * 1000, FRAMES)


def _with_ids(first: int, count: int) -> bytes:
    """Return a frame of the smallest messages with dedup ids."""
    ids = [(first + n + 1).to_bytes(16, "little") for n in range(count)]
    return frame_body(Columns([b""] * count, dedup_ids=ids))


@ROWS.add
def publish_frames_some_duplicates(work: Work) -> Request:
    columns = wide_columns(65_535, headers=True)
    topic = work.topic("published")
    work.publish(topic, columns)
    ids = [(1 << 20 | n if n % 2 else n + 1).to_bytes(16, "little") for n in range(65_535)]
    body = frame_body(Columns(**{**fields(columns), "dedup_ids": ids}))
    return _publishing(work, body, FRAMES)


@ROWS.add
def publish_frames_all_duplicates(work: Work) -> Request:
    body = _with_ids(1 << 24, 65_536)
    _publishing(work, body, FRAMES)()
    return _publishing(work, body * 2, FRAMES)


@ROWS.add
def publish_frames_of_many_ids(work: Work) -> Request:
    frames = [_with_ids((64 + n) << 20, 65_536) for n in range(2)]
    return _publishing(work, b"".join(frames), FRAMES)


@ROWS.add
def publish_frames_of_thousands_of_ids(work: Work) -> Request:
    frames = [_with_ids((128 << 20) + (n << 11), 2_048) for n in range(64)]
    return _publishing(work, b"".join(frames), FRAMES)
