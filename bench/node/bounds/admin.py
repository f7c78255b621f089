"""Looks at groups, topics and the node, and changes of settings."""

from __future__ import annotations

import json
from urllib.parse import quote

from bench.node.bounds.read import events_json
from bench.node.bounds.work import Request, Rows, Scenario, Work

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
    topic = work.grouped()
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


@ROWS.add
def message_of_many_groups(work: Work) -> Request:
    topic = work.grouped()
    return lambda: work.caller.call("GET", f"/v1/messages/{topic}:0:0")


@ROWS.add
def trace_of_many_groups(work: Work) -> Request:
    topic = work.grouped()
    return lambda: work.caller.call("GET", f"/v1/messages/{topic}:0:0/trace")


@ROWS.add
def live(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/v1/live?limit=1")


@ROWS.add
def live_of_many_groups(work: Work) -> Request:
    topic = work.grouped()
    return lambda: work.caller.call("GET", f"/v1/live?limit=1&topics={topic}")


@ROWS.add
def topic_create(work: Work) -> Request:
    body = {"name": "of-1000-partitions", "partitions": 1_000}
    return lambda: work.caller.call("POST", "/v1/topics", body)


@ROWS.add
def topic_show(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/v1/topics/of-1000-partitions")


@ROWS.add
def topic_tenant_weights(work: Work) -> Request:
    topic = work.wide()
    weights = ",".join(f"tenant-{n}={1 + n % 7}" for n in range(10_000))
    body = {"settings": {"tenants.weights": weights}}
    return lambda: work.caller.call("PATCH", f"/v1/topics/{topic}", body)


@ROWS.add
def topic_delete(work: Work) -> Request:
    return lambda: work.caller.call("DELETE", "/v1/topics/of-1000-partitions")


@ROWS.add
def topic_delete_of_many_groups(work: Work) -> Request:
    topic = work.grouped()
    return lambda: work.caller.call("DELETE", f"/v1/topics/{topic}")


@ROWS.add
def schedules(work: Work) -> Request:
    topic = work.topic("scheduled")
    message = {"value": "v" * 8_000}
    body = {"topic": topic, "every": "1d", "messages": [message]}
    for number in range(1_000):
        work.caller.do("PUT", f"/v1/schedules/s-{number}", body)
    return lambda: work.caller.call("GET", "/v1/schedules")


@ROWS.add
def tokens(work: Work) -> Request:
    rules = [f"publish:topic-{n}-*" for n in range(64)]
    for number in range(1_000):
        work.caller.do("POST", "/v1/tokens", {"name": f"t-{number}", "allow": rules})
    return lambda: work.caller.call("GET", "/v1/tokens")


@ROWS.add
def audit(work: Work) -> Request:
    return lambda: work.caller.call("GET", "/v1/audit?limit=1000")
