"""Answers of several nodes are put together to what one node with all partitions would say."""

from __future__ import annotations

import random
from typing import Any

import pytest

from goq.api.routing_policy import Document, MergeContext
from goq.api.views.merge import (
    is_shown_by_all,
    merge_group,
    merge_history,
    merge_partitions,
    merge_topic,
)
from goq.api.views.merge_pages import merge_by_due_time, merge_by_offset, merge_newest_first
from goq.broker.search.cursor import read_cursor, write_cursor
from goq.errors import GroupNotFound
from goq.units import format_time_us


def test_a_partition_that_nobody_leads_is_shown_offline() -> None:
    merged = merge_topic([_topic(_partition(0, "a"))], _asked(leaders=["a", None, "b"]))
    assert [p["leader"] for p in merged["partitions"]] == ["a", None, "b"]
    assert [p.get("online", True) for p in merged["partitions"]] == [True, False, False]
    assert not is_shown_by_all(merged)
    assert is_shown_by_all(merge_topic([_topic(_partition(0, "a"))], _asked(leaders=["a", None])))


def test_a_topic_whose_partitions_the_node_has_not_heard_of_is_not_whole() -> None:
    assert not is_shown_by_all(merge_topic([_topic()], _asked(leaders=[])))


def test_of_two_nodes_that_tell_of_one_partition_the_agreed_leader_counts() -> None:
    documents = [_topic(_partition(0, "a", end=5)), _topic(_partition(0, "b", end=9))]
    for leader, end in (("a", 5), ("b", 9)):
        merged = merge_topic(documents, _asked(leaders=[leader]))
        assert [p["end_offset"] for p in merged["partitions"]] == [end]


def test_archives_add_up() -> None:
    documents = [
        {**_topic(), "archived": {"segments": 1, "messages": 5, "bytes": 9, "first_time": "2"}},
        {**_topic(), "archived": {"segments": 2, "messages": 6, "bytes": 1, "first_time": "1"}},
        _topic(),
    ]
    archived = merge_topic(documents, _asked(leaders=[]))["archived"]
    assert archived == {"segments": 3, "messages": 11, "bytes": 10, "first_time": "1"}


def test_days_that_only_some_nodes_have_are_there() -> None:
    merged = merge_history(
        [
            _history("2026-01-01", "2026-01-03", count=2),
            _history("2026-01-02", "2026-01-03", count=0),
            {**_history(count=0), "first_time": None, "last_time": None},
        ],
        _asked(),
    )
    assert [(d["date"], d["messages"]) for d in merged["days"]] == [
        ("2026-01-01", 1),
        ("2026-01-02", 1),
        ("2026-01-03", 2),
    ]
    assert (merged["first_time"], merged["last_time"]) == ("2026-01-01", "2026-01-03")
    assert merged["scheduled"] == {"count": 2, "next_due": "2026-01-01"}
    assert merged["rates"]["published_per_s"] == 3.0
    assert merged["rates"]["window_s"] == 10.0


def test_a_group_of_the_past_is_known_if_any_node_knows_it() -> None:
    parts = [_group(0, as_of="then", known=False), _group(1, as_of="then", known=True)]
    merged = merge_group(parts, _asked("t", "g"))
    assert "known" not in merged
    assert merged["blocked"] is None
    with pytest.raises(GroupNotFound, match="nothing tells of a group 'g' of topic t at then"):
        merge_group([parts[0], parts[0]], _asked("t", "g"))


def test_consumers_of_several_nodes_are_shown_once() -> None:
    merged = merge_group([_group(0, held={"x": 2, "y": 1}), _group(1, held={"x": 5})], _asked())
    assert merged["members"] == [{"consumer": "x", "leased": 7}, {"consumer": "y", "leased": 1}]
    assert merged["lag"] == 2
    assert merged["oldest_ready_age_ms"] == 1


def test_partitions_come_in_order_and_once() -> None:
    documents = [{"partitions": [{"partition": n} for n in some]} for some in ((0, 3), (3, 1))]
    assert [p["partition"] for p in merge_partitions(documents, _asked())["partitions"]] == [
        0,
        1,
        3,
    ]


def test_the_last_answer_for_a_partition_counts_as_it_holds_now() -> None:
    documents = [{"partitions": [{"partition": 1, "to": to}]} for to in (40, 45)]
    assert merge_partitions(documents, _asked())["partitions"] == [{"partition": 1, "to": 45}]


@pytest.mark.parametrize("seed", range(30))
def test_pages_by_offset_give_everything_once_and_in_order(seed: int) -> None:
    """Each node may end its page early, as one does that looks only so far."""
    draw = random.Random(seed)
    places = [(p, o) for p in range(5) for o in range(draw.randrange(8))]
    limit = draw.randrange(1, 6)

    def page(node: int, after: str | None) -> Document:
        behind = (-1, -1) if after is None else tuple(map(int, after.split(":")[1:]))
        mine = [place for place in places if place[0] % 3 == node and place > behind]
        size = draw.randrange(1, limit + 1)
        some = [{"id": f"t:{p}:{o}", "partition": p, "offset": o} for p, o in mine[:size]]
        return {"messages": some, "next": some[-1]["id"] if mine[size:] else None}

    asked = _asked(limit=str(limit))
    found = _paged(page, lambda documents: merge_by_offset(100)(documents, asked), limit)
    assert [(m["partition"], m["offset"]) for m in found] == places


@pytest.mark.parametrize("seed", range(30))
def test_pages_by_due_time_give_everything_once_and_in_order(seed: int) -> None:
    draw = random.Random(seed)
    dues = sorted((draw.randrange(5), p, o) for p in range(5) for o in range(draw.randrange(6)))
    limit = draw.randrange(1, 6)

    def page(node: int, after: str | None) -> Document:
        behind = (-1, -1, -1) if after is None else tuple(map(int, after.split(".")))
        mine = [due for due in dues if due[1] % 3 == node and due > behind]
        size = draw.randrange(1, limit + 1)
        some = [
            {"deliver_at": format_time_us(ms * 1000), "partition": p, "offset": o}
            for ms, p, o in mine[:size]
        ]
        last = ".".join(map(str, mine[size - 1])) if mine[size:] else None
        return {"messages": some, "next": last}

    asked = _asked(limit=str(limit))
    found = _paged(page, lambda documents: merge_by_due_time(documents, asked), limit)
    assert [(m["partition"], m["offset"]) for m in found] == [due[1:] for due in dues]


@pytest.mark.parametrize("seed", range(30))
def test_pages_of_a_search_give_everything_once_and_each_newest_first(seed: int) -> None:
    draw = random.Random(seed)
    times = {(p, o): p + 3 * o for p in range(5) for o in range(draw.randrange(8))}
    limit = draw.randrange(1, 6)

    def page(node: int, cursor: str | None) -> Document:
        bounds = None if cursor is None else read_cursor(cursor)
        left = {
            (p, o): time
            for (p, o), time in times.items()
            if p % 3 == node and (bounds is None or o < bounds.get(p, 0))
        }
        mine = sorted(left, key=lambda place: left[place], reverse=True)
        some, rest = mine[:limit], mine[limit:]
        ends = {p: max(o for q, o in rest if q == p) + 1 for p, _ in rest}
        traces = [
            {"message": {"partition": p, "offset": o, "timestamp": f"{times[p, o]:03}"}}
            for p, o in some
        ]
        return {"traces": traces, "next": write_cursor(ends) if ends else None}

    found = _paged(page, lambda documents: merge_newest_first(documents, limit), limit, "traces")
    assert [int(t["message"]["timestamp"]) for t in found] == sorted(times.values(), reverse=True)


def _paged(page: Any, merge: Any, limit: int, field: str = "messages") -> list[Any]:
    found: list[Any] = []
    at = None
    for _ in range(200):
        merged = merge([page(node, at) for node in range(3)])
        assert len(merged[field]) <= limit
        found += merged[field]
        at = merged["next"]
        if at is None:
            return found
    raise AssertionError("the pages do not end")


def _asked(*path: str, leaders: Any = (), **query: str) -> MergeContext:
    return MergeContext(path, query, lambda _topic: leaders)


def _topic(*partitions: Document) -> Document:
    return {"name": "t", "partitions": list(partitions), "settings": {}}


def _partition(number: int, leader: str, *, end: int = 0) -> Document:
    return {"partition": number, "leader": leader, "end_offset": end}


def _history(*dates: str, count: int) -> Document:
    return {
        "first_time": min(dates, default=None),
        "last_time": max(dates, default=None),
        "days": [{"date": date, "messages": 1, "bytes": 10} for date in dates],
        "rates": {
            "published_per_s": 1.0,
            "published_bytes_per_s": 1.0,
            "delivered_per_s": 0.0,
            "acked_per_s": 0.0,
            "window_s": 10.0,
        },
        "scheduled": {"count": count, "next_due": min(dates) if count else None},
    }


def _group(number: int, *, held: dict[str, int] | None = None, **more: Any) -> Document:
    counts = dict.fromkeys(("ready", "leased", "retry", "blocked", "scheduled", "dead"), 0)
    return {
        "group": "g",
        "lag": 1,
        **counts,
        "oldest_ready_age_ms": number,
        "members": [{"consumer": name, "leased": n} for name, n in (held or {}).items()],
        "partitions": [{"partition": number, "lag": 1, **counts}],
        **more,
    }
