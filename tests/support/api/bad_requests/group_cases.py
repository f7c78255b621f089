"""Bad requests about groups: receive, settle, reset, peek."""

from __future__ import annotations

from goq import limits
from tests.support.api.bad_requests.case import DIGITS, GROUP, HUGE, Case

RECEIVING = {
    f"receive with {name}": Case("POST", f"{GROUP}/receive", body, code, field)
    for name, body, code, field in [
        ("max_messages 0", {"max_messages": 0}, "invalid_input", "max_messages"),
        ("max_messages -1", {"max_messages": -1}, "invalid_input", "max_messages"),
        ("max_messages huge", {"max_messages": HUGE}, "invalid_input", "max_messages"),
        (
            "max_messages one over",
            {"max_messages": limits.RECEIVE_MESSAGES_MAX + 1},
            "invalid_input",
            "max_messages",
        ),
        ("max_messages of a text", {"max_messages": "1"}, "invalid_input", "max_messages"),
        ("max_messages of a half", {"max_messages": 0.5}, "invalid_input", "max_messages"),
        ("max_messages null", {"max_messages": None}, "invalid_input", "max_messages"),
        ("max_messages true", {"max_messages": True}, "invalid_input", "max_messages"),
        ("a word for wait", {"wait": "long"}, "invalid_input", "wait"),
        ("too long a wait", {"wait": "60001ms"}, "invalid_input", "wait"),
        ("a negative wait", {"wait": -1}, "invalid_input", "wait"),
        ("an absurd wait", {"wait": 1e308}, "invalid_input", "wait"),
        ("an absurd text for wait", {"wait": "9" * 400 + "d"}, "invalid_input", "wait"),
        ("wait null", {"wait": None}, "invalid_input", "wait"),
        ("visibility 0", {"visibility": 0}, "invalid_input", "visibility"),
        ("visibility 0.1ms", {"visibility": "0.1ms"}, "invalid_input", "visibility"),
        ("too long a visibility", {"visibility": "12h1ms"}, "invalid_input", "visibility"),
        ("an absurd visibility", {"visibility": 1e300}, "invalid_input", "visibility"),
        (
            "too long a consumer",
            {"consumer": "c" * (limits.CONSUMER_NAME_CHARS_MAX + 1)},
            "too_large",
            "consumer",
        ),
        ("a consumer of no kind", {"consumer": 1}, "invalid_input", "consumer"),
        ("an unknown field", {"visibility_timeout": "1s"}, "invalid_input", "body"),
    ]
} | {
    "a group that may not be named so": Case(
        "POST", "/v1/topics/bad/groups/.x/receive", {}, "invalid_input", "group"
    ),
    "too long a group": Case(
        "POST", f"/v1/topics/bad/groups/{'g' * 201}/receive", {}, "invalid_input", "group"
    ),
    "no topic": Case("POST", "/v1/topics/no/groups/g/receive", {}, "topic_not_found", "topic"),
}

SETTLING = {
    f"{verb} with {name}": Case("POST", f"{GROUP}/{verb}", body, code, field)
    for verb in ("ack", "nack", "extend")
    for name, body, code, field in [
        ("nothing", {}, "invalid_input", "body"),
        ("a text", {"receipts": "0:1:0"}, "invalid_input", "receipts"),
        ("numbers", {"receipts": [1]}, "invalid_input", "receipts[0]"),
        ("an empty receipt", {"receipts": [""]}, "invalid_input", "receipts[0]"),
        ("a bad second receipt", {"receipts": ["0:1:0", "x"]}, "invalid_input", "receipts[1]"),
        ("a receipt of nothing", {"receipts": ["0:1:0+0"]}, "invalid_input", "receipts[0]"),
        ("a negative receipt", {"receipts": ["0:1:-1"]}, "invalid_input", "receipts[0]"),
        ("an absurd receipt", {"receipts": [f"0:1:{DIGITS}"]}, "invalid_input", "receipts[0]"),
        ("a receipt of other digits", {"receipts": ["0:1:\u0661"]}, "invalid_input", "receipts[0]"),
        ("a receipt and a line's end", {"receipts": ["0:1:0\n"]}, "invalid_input", "receipts[0]"),
        (
            "one receipt too many",
            {"receipts": ["0:1:0"] * (limits.RECEIPTS_PER_REQUEST_MAX + 1)},
            "too_large",
            "receipts",
        ),
        ("an unknown field", {"receipts": [], "receipt": ""}, "invalid_input", "body"),
    ]
} | {
    "nack with a word for delay": Case(
        "POST", f"{GROUP}/nack", {"receipts": [], "delay": "later"}, "invalid_input", "delay"
    ),
    "nack with too long a delay": Case(
        "POST", f"{GROUP}/nack", {"receipts": [], "delay": "366d"}, "invalid_input", "delay"
    ),
    "nack with an absurd delay": Case(
        "POST", f"{GROUP}/nack", {"receipts": [], "delay": 1e308}, "invalid_input", "delay"
    ),
    "nack with too long a reason": Case(
        "POST",
        f"{GROUP}/nack",
        {"receipts": [], "reason": "r" * (limits.REASON_CHARS_MAX + 1)},
        "too_large",
        "reason",
    ),
    "extend by nothing": Case(
        "POST", f"{GROUP}/extend", {"receipts": [], "visibility": 0}, "invalid_input", "visibility"
    ),
}

GROUPS = {
    f"reset to {str(to)[:40]!r}": Case("POST", f"{GROUP}/reset", {"to": to}, "invalid_input", "to")
    for to in (-1, HUGE, DIGITS, "9" * 25, "never", "", True, 1.5, None, "-" + "9" * 400 + "d")
} | {
    **{
        f"reset with an end of {str(end)[:40]!r}": Case(
            "POST", f"{GROUP}/reset", {"to": 0, "end": end}, "invalid_input", "end"
        )
        for end in (-1, 2**63, "soon", "9" * 30)
    },
    "reset to nowhere": Case("POST", f"{GROUP}/reset", {}, "invalid_input", "body"),
    "reset a partition there is not": Case(
        "POST",
        f"{GROUP}/reset",
        {"to": "earliest", "partition": 9},
        "partition_not_found",
        "partition",
    ),
    "reset a group that may not be named so": Case(
        "POST", "/v1/topics/bad/groups/__x/reset", {"to": 0}, "invalid_input", "group"
    ),
    "reset with a word for dry_run": Case(
        "POST", f"{GROUP}/reset", {"to": 0, "dry_run": "yes"}, "invalid_input", "dry_run"
    ),
    "show no group": Case("GET", "/v1/topics/bad/groups/no", None, "group_not_found", "group"),
    "delete no group": Case("DELETE", "/v1/topics/bad/groups/no", None, "group_not_found", "group"),
    "groups of no topic": Case("GET", "/v1/topics/no/groups", None, "topic_not_found", "topic"),
    "peek into no group": Case(
        "GET", "/v1/topics/bad/groups/no/peek", None, "group_not_found", "group"
    ),
    "peek at no state": Case("GET", f"{GROUP}/peek?state=gone", None, "invalid_input", "state"),
    "peek with limit 0": Case("GET", f"{GROUP}/peek?limit=0", None, "invalid_input", "limit"),
    "peek with too high a limit": Case(
        "GET", f"{GROUP}/peek?limit=10001", None, "invalid_input", "limit"
    ),
    "peek behind nothing": Case("GET", f"{GROUP}/peek?after=x", None, "invalid_input", "after"),
    "peek behind another topic": Case(
        "GET", f"{GROUP}/peek?after=other:0:0", None, "invalid_input", "after"
    ),
    "peek with an unknown parameter": Case(
        "GET", f"{GROUP}/peek?max_messages=1", None, "invalid_input", "max_messages"
    ),
    "peek with a parameter twice": Case(
        "GET", f"{GROUP}/peek?limit=1&limit=2", None, "invalid_input", "limit"
    ),
}
