"""Merges of the answers of several nodes about one topic, group or member.

Pure functions over JSON documents. While a partition moves, two nodes may answer for it; the leader
in the cluster metadata wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from goq.api.routing_policy import Document, MergeContext
from goq.errors import GroupNotFound

_GROUP_SUMS = ("lag", "ready", "leased", "retry", "blocked", "scheduled", "dead")
_RATES = ("published_per_s", "published_bytes_per_s", "delivered_per_s", "acked_per_s")
_ARCHIVED_SUMS = ("segments", "messages", "bytes")


def merge_topic(documents: Sequence[Document], asked: MergeContext) -> Document:
    """Merge what leaders show of a topic; a partition that none of them shows is offline."""
    merged = dict(documents[0])
    leaders = asked.leaders(merged["name"])
    found: dict[int, Document] = {}
    for partition in _of_all(documents, "partitions"):
        number = partition["partition"]
        is_agreed = number < len(leaders) and leaders[number] == partition["leader"]
        if number not in found or is_agreed:
            found[number] = partition
    for number in range(len(leaders)):
        if number not in found or leaders[number] is None:
            found[number] = {
                "partition": number,
                "leader": leaders[number],
                **dict.fromkeys(("start_offset", "end_offset", "high_watermark", "bytes"), 0),
                "online": False,
            }
    merged["partitions"] = _by_partition(found)
    if archived := [each["archived"] for each in documents if "archived" in each]:
        merged["archived"] = {
            **{name: sum(each[name] for each in archived) for name in _ARCHIVED_SUMS},
            "first_time": _least(each["first_time"] for each in archived),
        }
    return merged


def is_shown_by_all(topic: Document) -> bool:
    """Whether every leader of a partition shows the merged topic.

    Without partitions the result is false: this node has not received the metadata yet.
    """
    partitions = topic["partitions"]
    return bool(partitions) and all(
        p["leader"] is None or p.get("online", True) for p in partitions
    )


def merge_topics(documents: Sequence[Document], asked: MergeContext) -> Document:
    """Merge lists of topics."""
    return {"topics": [merge_topic(some, asked) for some in _by_name(documents, "topics", "name")]}


def merge_history(documents: Sequence[Document], _asked: MergeContext) -> Document:
    """Merge a topic's history: amounts of a day and rates add up."""
    days: dict[str, Document] = {}
    for day in _of_all(documents, "days"):
        known = days.setdefault(day["date"], {"date": day["date"], "messages": 0, "bytes": 0})
        known["messages"] += day["messages"]
        known["bytes"] += day["bytes"]
    rates = [each["rates"] for each in documents]
    scheduled = [each["scheduled"] for each in documents]
    return {
        "first_time": _least(each["first_time"] for each in documents),
        "last_time": max((t for each in documents if (t := each["last_time"])), default=None),
        "days": [day for _, day in sorted(days.items())],
        "rates": {
            **{name: sum(each[name] for each in rates) for name in _RATES},
            "window_s": max(each["window_s"] for each in rates),
        },
        "scheduled": {
            "count": sum(each["count"] for each in scheduled),
            "next_due": _least(each["next_due"] for each in scheduled),
        },
    }


def merge_group(documents: Sequence[Document], asked: MergeContext) -> Document:
    """Merge a group's progress; a group that no leader knew did not exist."""
    merged = dict(documents[0])
    found: dict[int, Document] = {}
    for partition in _of_all(documents, "partitions"):
        found.setdefault(partition["partition"], partition)
    merged["partitions"] = partitions = _by_partition(found)
    for name in _GROUP_SUMS:
        amounts = [partition[name] for partition in partitions]
        merged[name] = None if None in amounts else sum(amounts)
    if "as_of" in merged:
        merged["blocked"] = None
    ages = [a for each in documents if (a := each["oldest_ready_age_ms"]) is not None]
    merged["oldest_ready_age_ms"] = max(ages, default=None)
    held: dict[str, int] = {}
    for member in _of_all(documents, "members"):
        held[member["consumer"]] = held.get(member["consumer"], 0) + member["leased"]
    merged["members"] = [{"consumer": name, "leased": n} for name, n in sorted(held.items())]
    if any("incomplete" in each for each in documents):
        reasons = _of_all(documents, "incomplete")
        merged["incomplete"] = sorted(reasons, key=lambda each: each["partition"])
    if "known" in merged:
        del merged["known"]
        if not any(each["known"] for each in documents):
            raise group_unknown_at(asked.path[0], merged["group"], merged["as_of"])
    return merged


def group_unknown_at(topic: str, group: str, time: str) -> GroupNotFound:
    """Return the error for a group that is not known at a time."""
    return GroupNotFound(
        f"nothing tells of a group {group[:200]!r} of topic {topic} at {time}; a group begins with"
        " its first receive",
        field="group",
    )


def merge_groups(documents: Sequence[Document], asked: MergeContext) -> Document:
    """Merge lists of groups."""
    by_name = _by_name(documents, "groups", "group")
    return {"groups": [merge_group(some, asked) for some in by_name]}


def merge_partitions(documents: Sequence[Document], _asked: MergeContext) -> Document:
    """Merge answers that differ in their partitions only; the last one for a partition counts."""
    found = {each["partition"]: each for each in _of_all(documents, "partitions")}
    return {**documents[0], "partitions": _by_partition(found)}


def merge_assignments(documents: Sequence[Document], _asked: MergeContext) -> Document:
    """Merge a member's assignments at each leader."""
    return merge_assignment(documents)


def merge_assignment(documents: Sequence[Document]) -> Document:
    """Merge a member's assignments at each leader; the highest generation is that of the group."""
    return {
        "generation": max(each["generation"] for each in documents),
        **{
            name: sorted({number for each in documents for number in each[name]})
            for name in ("partitions", "revoking")
        },
    }


def merge_members(documents: Sequence[Document], _asked: MergeContext) -> Document:
    """Merge the members that leaders know, each with all its partitions."""
    members: dict[tuple[str, str], Document] = {}
    for each in _of_all(documents, "members"):
        member = each["consumer"], each.get("session", "")  # none before there were sessions
        known = members.get(member)
        if known is not None:
            each = {
                **known,
                "partitions": sorted(known["partitions"] + each["partitions"]),
                "revoking": sorted(known["revoking"] + each["revoking"]),
                "last_seen": max(known["last_seen"], each["last_seen"]),
                "open": known["open"] or each["open"],
            }
        members[member] = each
    return {
        "generation": max(each["generation"] for each in documents),
        "members": [member for _, member in sorted(members.items())],
        "moving": sorted(_of_all(documents, "moving"), key=lambda move: move["partition"]),
        "history": sorted(_of_all(documents, "history"), key=lambda change: change["time"]),
    }


def _by_name(documents: Sequence[Document], field: str, name: str) -> list[list[Document]]:
    found: dict[str, list[Document]] = {}
    for each in _of_all(documents, field):
        found.setdefault(each[name], []).append(each)
    return [some for _, some in sorted(found.items())]


def _of_all(documents: Sequence[Document], field: str) -> list[Document]:
    return [each for document in documents for each in document.get(field, ())]


def _by_partition(found: dict[int, Document]) -> list[Document]:
    return [found[number] for number in sorted(found)]


def _least(times: Iterable[Any]) -> Any:
    return min((time for time in times if time), default=None)
