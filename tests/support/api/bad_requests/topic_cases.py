"""Bad requests about topics and what is in them, and routes that do not exist."""

from __future__ import annotations

from typing import Any

from goq import limits
from tests.support.api.bad_requests.case import GROUP, HUGE, PUBLISH, Case

TOPICS = {
    "no name": Case("POST", "/v1/topics", {}, "invalid_input", "body"),
    "an empty name": Case("POST", "/v1/topics", {"name": ""}, "invalid_input", "name"),
    "a name with a slash": Case("POST", "/v1/topics", {"name": "a/b"}, "invalid_input", "name"),
    "a name with a dot first": Case("POST", "/v1/topics", {"name": ".a"}, "invalid_input", "name"),
    "the name of the folder above": Case(
        "POST", "/v1/topics", {"name": ".."}, "invalid_input", "name"
    ),
    "a name with a line's end": Case(
        "POST", "/v1/topics", {"name": "a\n"}, "invalid_input", "name"
    ),
    "a name that is not ASCII": Case("POST", "/v1/topics", {"name": "é"}, "invalid_input", "name"),
    "a name with a zero byte": Case("POST", "/v1/topics", {"name": "a\0"}, "invalid_input", "name"),
    "a name one character too long": Case(
        "POST",
        "/v1/topics",
        {"name": "n" * (limits.NAME_CHARS_MAX + 1)},
        "invalid_input",
        "name",
    ),
    "a long name": Case("POST", "/v1/topics", {"name": "n" * 200_000}, "invalid_input", "name"),
    "a megabyte of name": Case(
        "POST", "/v1/topics", {"name": "n" * 1_000_000}, "too_large", "body"
    ),
    "a hundred and fifty thousand settings": Case(
        "PATCH",
        "/v1/topics/bad",
        {"settings": {f"a{number}": 1 for number in range(150_000)}},
        "too_large",
        "body",
    ),
    "ten thousand settings": Case(
        "PATCH",
        "/v1/topics/bad",
        {"settings": {f"a{number}": 1 for number in range(10_000)}},
        "invalid_input",
        "settings",
    ),
    "a name that is there": Case("POST", "/v1/topics", {"name": "bad"}, "topic_exists", "name"),
    "a bad name by path": Case("PUT", "/v1/topics/.a", b"", "invalid_input", "topic"),
    "no topic": Case("GET", "/v1/topics/nothing", None, "topic_not_found", "topic"),
    "an unknown parameter": Case("GET", "/v1/topics?all=1", None, "invalid_input", "all"),
    "delete with a parameter": Case(
        "DELETE", "/v1/topics/bad?force=1", None, "invalid_input", "force"
    ),
    "fewer partitions": Case(
        "PATCH", "/v1/topics/bad", {"partitions": 1}, "invalid_input", "partitions"
    ),
    "an unknown setting in a change": Case(
        "PATCH", "/v1/topics/bad", {"settings": {"x": 1}}, "invalid_input", "settings.x"
    ),
    "an unknown field": Case("PATCH", "/v1/topics/bad", {"fsync": 1}, "invalid_input", "body"),
}
for count in (0, -1, limits.PARTITIONS_PER_TOPIC_MAX + 1, HUGE, -HUGE):
    TOPICS[f"{count} partitions"] = Case(
        "POST", "/v1/topics", {"name": "n", "partitions": count}, "invalid_input", "partitions"
    )
for count_of_no_kind in (1.5, "1", True, [], {}):
    TOPICS[f"{count_of_no_kind!r} partitions"] = Case(
        "POST",
        "/v1/topics",
        {"name": "n", "partitions": count_of_no_kind},
        "invalid_input",
        "partitions",
    )
for setting, value in [
    ("retention.age", "soon"),
    ("retention.age", "-1s"),
    ("retention.age", 0),
    ("retention.age", True),
    ("retention.age", 1e308),
    ("retention.age", -1e308),
    ("retention.age", HUGE),
    ("retention.age", "9" * 400 + "d"),
    ("retention.age", "9" * 5000),
    ("retention.bytes", "1 bushel"),
    ("retention.bytes", 1),
    ("retention.bytes", HUGE),
    ("retention.bytes", "9" * 5000),
    ("segment.bytes", "none"),
    ("segment.bytes", limits.SEGMENT_BYTES_MIN - 1),
    ("segment.bytes", limits.SEGMENT_BYTES_MAX + 1),
    ("segment.age", None),
    ("segment.age", []),
    ("segment.age", {}),
    ("fsync", "sometimes"),
    ("fsync", ["always"]),
    ("fsync", "x" * 200_000),
    ("delivery.visibility_timeout", "0s"),
    ("delivery.visibility_timeout", "12h1ms"),
    ("nothing.of.the.sort.at.all", 1),
    ("n" * 100_000, 1),
]:
    if value == {}:
        continue
    TOPICS[f"{setting[:40]} {str(value)[:40]}"] = Case(
        "POST",
        "/v1/topics",
        {"name": "n", "settings": {setting: value}},
        "invalid_input",
        f"settings.{setting}"[:200],
    )
deep: Any = 1
for _ in range(400):
    deep = {"a": deep}
TOPICS["settings four hundred deep"] = Case(
    "POST", "/v1/topics", {"name": "n", "settings": deep}, "invalid_input", "settings.a.a.a.a.a"
)

READING = {
    f"read with {query or 'nothing'}": Case(
        "GET", f"{PUBLISH}?{query}", None, "invalid_input", field
    )
    for query, field in [
        ("", "partition"),
        ("partition=x", "partition"),
        ("partition=", "partition"),
        ("partition=-1", "partition"),
        ("partition=%D9%A1", "partition"),
        (f"partition={'9' * 400}", "partition"),
        ("partition=0&partition=0", "partition"),
        ("partition=0&offset=-1", "offset"),
        ("partition=0&offset=1.5", "offset"),
        (f"partition=0&offset={2**63}", "offset"),
        ("partition=0&from_time=2025-01-15&to_time=2025-01-14", "to_time"),
        ("partition=0&background=1", "background"),
        ("partition=0&background=", "background"),
        ("partition=0&limit=0", "limit"),
        ("partition=0&limit=-1", "limit"),
        (f"partition=0&limit={limits.READ_MESSAGES_MAX + 1}", "limit"),
        (f"partition=0&limit={HUGE}", "limit"),
        ("partition=0&bytes=1000", "bytes"),
        ("partition=0&from_time=yesterday", "from_time"),
        ("partition=0&from_time=2025-01-15T10:30:00", "from_time"),
        ("partition=0&from_time=2025-13-15", "from_time"),
        ("partition=0&from_time=", "from_time"),
        (f"partition=0&from_time={'9' * 400}", "from_time"),
        (f"partition=0&from_time=-{'9' * 400}d", "from_time"),
        ("partition=0&to_time=later", "to_time"),
        ("partition=0&wait=ages", "wait"),
        ("partition=0&wait=60001ms", "wait"),
        (f"partition=0&wait={'9' * 400}", "wait"),
        ("partition=0&wait=-1s", "wait"),
        ("partition=0&include_everything=true", "include_everything"),
        ("partition=%ff", None),
        ("partition=%zz", None),
    ]
} | {
    "a partition there is not": Case(
        "GET", f"{PUBLISH}?partition=2", None, "partition_not_found", "partition"
    ),
    "an absurd partition": Case(
        "GET", f"{PUBLISH}?partition={2**63 - 1}", None, "partition_not_found", "partition"
    ),
    "no topic": Case(
        "GET", "/v1/topics/nothing/messages?partition=0", None, "topic_not_found", "topic"
    ),
    "an id of no kind": Case("GET", "/v1/messages/hello", None, "invalid_input", "id"),
    "an id with a negative offset": Case(
        "GET", "/v1/messages/bad:0:-1", None, "invalid_input", "id"
    ),
    "an id with twenty digits": Case(
        "GET", f"/v1/messages/bad:0:{'9' * 20}", None, "invalid_input", "id"
    ),
    "an id with other digits": Case(
        "GET", "/v1/messages/bad:0:%D9%A1", None, "invalid_input", "id"
    ),
    "an id of a hidden topic": Case("GET", "/v1/messages/.x:0:1", None, "invalid_input", "id"),
    "an id without topic": Case("GET", "/v1/messages/:0:1", None, "invalid_input", "id"),
    "a message that is not yet": Case(
        "GET", "/v1/messages/bad:1:7", None, "message_not_found", "id"
    ),
    "a message of a partition there is not": Case(
        "GET", "/v1/messages/bad:7:0", None, "partition_not_found", "partition"
    ),
    "a message of no topic": Case("GET", "/v1/messages/no:0:0", None, "topic_not_found", "topic"),
}

ROUTES = {
    f"{method} {path}": Case(method, path, None, code, field)
    for method, path, code, field in [
        ("GET", "//", "route_not_found", None),
        ("GET", "/v1", "route_not_found", None),
        ("GET", "/v1/topics/", "route_not_found", None),
        ("GET", "/v2/topics", "route_not_found", None),
        ("GET", "/v1/topics/bad/messages/", "route_not_found", None),
        ("GET", "/v1/topics/bad/nothing", "route_not_found", None),
        ("GET", "//v1/topics", "route_not_found", None),
        ("GET", "/v1/../v1/topics", "route_not_found", None),
        ("DELETE", "/v1/topics", "method_not_allowed", "method"),
        ("OPTIONS", "/v1/topics", "method_not_allowed", "method"),
        ("GET", f"{GROUP}/receive", "method_not_allowed", "method"),
        ("POST", "/healthz", "method_not_allowed", "method"),
    ]
}
