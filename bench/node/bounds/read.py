"""Looks at messages, dead letters, delayed messages and events."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.node.bounds.work import FRAMES, WIDE, Request, Rows, Scenario, Work, fields, wide_columns
from goq.frame.encoder import Columns

ROWS = Rows()


@ROWS.add
def read_json(work: Work) -> Request:
    path = f"/v1/topics/{work.wide()}/messages?partition=0&limit=10000&offset=30000"
    return lambda: work.caller.call("GET", path)


@ROWS.add
def read_frames(work: Work) -> Request:
    path = f"/v1/topics/{work.wide()}/messages?partition=0&limit=10000&offset=55000"
    return lambda: work.caller.call("GET", path, accept=FRAMES)


@ROWS.add
def message(work: Work) -> Request:
    work.wide()
    return lambda: work.caller.call("GET", "/v1/messages/wide:0:59000")


@ROWS.add
def trace(work: Work) -> Request:
    work.wide()
    return lambda: work.caller.call("GET", "/v1/messages/wide:0:0/trace")


@ROWS.add
def search_by_header(work: Work) -> Request:
    path = f"/v1/topics/{work.wide()}/trace?header=name%3D59999&limit=100"
    return lambda: work.caller.call("GET", path)


def _peeking(work: Work, state: str) -> Request:
    path = f"/v1/topics/{work.wide()}/groups/g/peek?limit=10000&state={state}"
    return lambda: work.caller.call("GET", path)


@ROWS.add
def peek_ready(work: Work) -> Request:
    return _peeking(work, "ready")


@ROWS.add
def peek_leased(work: Work) -> Request:
    work.receive(work.wide(), "g")
    return _peeking(work, "leased")


@ROWS.add
def peek_done(work: Work) -> Request:
    return _peeking(work, "done")


@ROWS.add
def peek_dead(work: Work) -> Request:
    receipts = work.receive(work.wide(), "g")
    work.caller.do("POST", "/v1/topics/wide/groups/g/reject", {"receipts": receipts})
    time.sleep(3)
    return _peeking(work, "dead")


@ROWS.add
def dead_list(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/v1/topics/wide/dead?limit=10000")


@ROWS.add
def dead_redrive(work: Work) -> Request:
    return lambda: work.caller.call("POST", "/v1/topics/wide/redrive", {"max_messages": 10_000})


@ROWS.add
def dead_purge(work: Work) -> Request:
    return lambda: work.caller.call("DELETE", "/v1/topics/wide/dead?max_messages=10000")


@ROWS.add
def scheduled(work: Work) -> Request:
    topic = work.topic("later")
    far_ms = int(time.time() * 1000) + 86_400_000
    for _ in range(2):
        columns = wide_columns()
        times = [far_ms - (n * 7919) % WIDE for n in range(WIDE)]
        found = {**fields(columns), "deliver_at_ms": times, "dedup_ids": None}
        work.publish(topic, Columns(**found))
    return lambda: work.caller.call("GET", f"/v1/topics/{topic}/scheduled?limit=1000")


@ROWS.add
def events_json(work: Work) -> Request:
    topic = work.topic("sparse")
    if not work.caller.do("GET", f"/v1/topics/{topic}")["partitions"][0]["end_offset"]:
        for _ in range(8):
            work.publish(topic, Columns([b"v"] * 65_536))
    for _ in range(5):
        receipts = work.receive(topic, "s", 10_000)[::2]
        work.caller.do("POST", f"/v1/topics/{topic}/groups/s/ack", {"receipts": receipts})
    return lambda: work.caller.call("GET", f"/v1/topics/{topic}/events?partition=0&limit=1000")


def _looking(make: Callable[[Work], str], path: str) -> Scenario:
    def prepare(work: Work) -> Request:
        asked = path.format(make(work))
        return lambda: work.caller.call("GET", asked)

    return prepare


for _name, _make in (
    ("behind_keys", Work.keyed),
    ("of_many_leases", Work.leased),
    ("of_many_retries", Work.retried),
):
    for _what, _path in (
        ("group", "/v1/topics/{}/groups/g"),
        ("groups", "/v1/topics/{}/groups"),
        ("peek_ready", "/v1/topics/{}/groups/g/peek?limit=10000&state=ready"),
        ("peek_done", "/v1/topics/{}/groups/g/peek?limit=10000&state=done"),
        ("message", "/v1/messages/{}:0:40000"),
        ("live", "/v1/live?limit=1&topics={}"),
    ):
        ROWS[f"{_what}-{_name}".replace("_", "-")] = _looking(_make, _path)
for _name, _make in (
    ("blocked", Work.keyed),
    ("leased", Work.leased),
    ("retry", Work.retried),
):
    _path = "/v1/topics/{}/groups/g/peek?limit=10000&state=" + _name
    ROWS[f"peek-many-{_name}"] = _looking(_make, _path)


@ROWS.add
def search_by_key(work: Work) -> Request:
    return lambda: work.caller.call("GET", f"/v1/topics/{work.keyed()}/trace?key=7&limit=100")


@ROWS.add
def search_by_text(work: Work) -> Request:
    return lambda: work.caller.call("GET", f"/v1/topics/{work.wide()}/search?text=value-59999")


@ROWS.add
def reset_behind_keys(work: Work) -> Request:
    return _resetting(work, work.keyed())


@ROWS.add
def reset_of_many_retries(work: Work) -> Request:
    return _resetting(work, work.retried())


@ROWS.add
def reset_of_many_leases(work: Work) -> Request:
    return _resetting(work, work.leased())


def _resetting(work: Work, topic: str) -> Request:
    path = f"/v1/topics/{topic}/groups/g/reset"
    return lambda: work.caller.call("POST", path, {"to": 10})
