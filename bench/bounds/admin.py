"""Looks at groups, topics and the node, and changes of settings."""

from __future__ import annotations

import json
from urllib.parse import quote

from bench.bounds.read import events_json
from bench.bounds.work import Request, Rows, Scenario, Work
from goq.frame.encoder import Columns

ROWS = Rows()


@ROWS.add
def group_with_leases(work: Work) -> Request:
    work.receive(work.wide(), "g")
    return lambda: work.caller.call("GET", "/v1/topics/wide/groups/g")


@ROWS.add
def group_sparse(work: Work) -> Request:
    events_json(work)
    return lambda: work.caller.call("GET", "/v1/topics/sparse/groups/s")


@ROWS.add
def reset_sparse(work: Work) -> Request:
    events_json(work)
    body = {"to": 400_000}
    return lambda: work.caller.call("POST", "/v1/topics/sparse/groups/s/reset", body)


@ROWS.add
def settings_unknown(work: Work) -> Request:
    topic = work.topic("settings")
    body = json.dumps({"settings": {f"a{n}": 1 for n in range(150_000)}}).encode()
    return lambda: work.caller.call("PATCH", f"/v1/topics/{topic}", body)


@ROWS.add
def settings_deep(work: Work) -> Request:
    topic = work.topic("settings")
    tree = {f"a{n}": {f"b{m}": {"c": 1} for m in range(200)} for n in range(300)}
    body = json.dumps({"settings": tree}).encode()
    return lambda: work.caller.call("PATCH", f"/v1/topics/{topic}", body)


@ROWS.add
def history(work: Work) -> Request:
    path = f"/v1/topics/{quote(work.wide())}/history?days=366"
    return lambda: work.caller.call("GET", path)


def _looking(path: str) -> Scenario:
    return lambda work: lambda: work.caller.call("GET", path)


for _path in ("/openapi.json", "/docs", "/healthz", "/v1/cluster", "/v1/topics"):
    ROWS["get" + _path.replace("/", "-")] = _looking(_path)


@ROWS.add
def groups(work: Work) -> Request:
    topic = work.topic("groups")
    work.publish(topic, Columns([b"v"]))
    for number in range(10_000):
        work.caller.do("POST", f"/v1/topics/{topic}/groups/g{number}/receive", {})
    return lambda: work.caller.call("GET", f"/v1/topics/{topic}/groups")


@ROWS.add
def metrics(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/metrics")


@ROWS.add
def topics(work: Work) -> Request:
    for number in range(150):
        work.caller.do("POST", "/v1/topics", {"name": f"many-{number}", "partitions": 20})
    return lambda: work.caller.call("GET", "/v1/topics")


@ROWS.add
def metrics_of_many_partitions(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/metrics")
