"""The check of a node against what clients were told before the power went.

It asks the node over HTTP only, and collects everything that is broken. Nothing of it knows what
the folder looks like.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from goq.storage.disk import RealDisk
from goq.storage.verification import verify_data_dir
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode
from tests.support.storage.power.history import ABSENT, NOT_LEADER, PAUSE_S, Promises
from tests.support.storage.power.workload import (
    ARCHIVED,
    GROUP,
    LATER,
    LATEST,
    LAZY,
    RETENTION_BYTES,
    SEGMENT_BYTES_MAX,
    TRIMMED,
    WORK,
)

SHOWN_MAX = 12
SEARCHES = 3
DEAD_LETTERS = ".dlq"
_ENOUGH = 10_000
_PAGE = 1_000
PATIENCE_S = 30.0
_STATES = ("ready", "leased", "retry", "done", "dead")


class BrokenPromises(AssertionError):
    """What a node no longer has, or has beyond what it was asked for."""


class Stored(NamedTuple):
    """A message as the node has it."""

    partition: int
    offset: int
    message: dict[str, Any]

    @property
    def value(self) -> str:
        """Its text."""
        return str(self.message.get("value"))


class PromiseCheck:
    """A running node and the promises that it has to keep. Use :func:`check`."""

    def __init__(self, node: RunningNode, promises: Promises, patience_s: float) -> None:
        self._node = node
        self._patience_s = patience_s
        self._is_member = node.node.config.cluster.is_member
        self._promises = promises
        self.broken: list[str] = []
        self._topics: dict[str, dict[str, Any]] = {}
        self._logs: dict[str, list[Stored]] = {}

    def run(self) -> None:
        """Check everything; the messages that it publishes come last."""
        self._check_health()
        self._check_topics()
        self._check_groups()
        for topic in self._topics:
            if not topic.endswith(DEAD_LETTERS):
                self._logs[topic] = list(self._read(topic))
                self._check_log(topic)
        self._check_states()
        self._check_dead_letters()
        self._check_delayed()
        self._check_dedup()
        self._check_key_search()
        self._check_new_messages()

    def _complain(self, broken: str) -> None:
        self.broken.append(broken)

    def _get(self, path: str) -> Any:
        return self._node.call("GET", f"/v1/topics{path}")

    def _check_health(self) -> None:
        """Ask for the node's health; in a cluster it may have to become the leader first."""
        until_s = time.monotonic() + (PATIENCE_S if self._is_member else 0.0)
        while (health := self._node.request("GET", "/healthz")).status != 200:
            if time.monotonic() >= until_s:
                self._complain(f"healthz is {health.status}: {health.body.decode()}")
                return
            time.sleep(PAUSE_S)

    def _ask(self, path: str) -> Answer:
        """Return an answer whatever it says, but wait for the node to lead."""
        until_s = time.monotonic() + PATIENCE_S
        while (answer := self._node.request("GET", path)).status == NOT_LEADER:
            assert time.monotonic() < until_s, answer
            time.sleep(PAUSE_S)
        return answer

    # Topics and groups

    def _check_topics(self) -> None:
        """Check the topics; a member of a cluster may still apply the end of its Raft log."""
        until_s = time.monotonic() + (PATIENCE_S if self._is_member else 0.0)
        while True:
            self._topics = {topic["name"]: topic for topic in self._get("")["topics"]}
            broken = list(self._broken_topics())
            if not broken or time.monotonic() >= until_s:
                break
            time.sleep(PAUSE_S)
        self.broken += broken
        for name in self._topics:
            asked = self._promises.possible(("topic", name.removesuffix(DEAD_LETTERS)))
            if asked == [ABSENT]:
                self._complain(f"topic {name} is there")

    def _broken_topics(self) -> Iterator[str]:
        for (_, name), possible in self._promises.of_kind("topic"):
            found = self._topics.get(str(name))
            if not any(_is_topic(found, value) for value in possible):
                yield f"topic {name} is {_shown(found)}, not one of {possible}"

    def _check_groups(self) -> None:
        for (_, topic, group), possible in self._promises.of_kind("group"):
            found: Any = ABSENT
            if topic in self._topics:
                groups = {each["group"] for each in self._get(f"/{topic}/groups")["groups"]}
                if group in groups:
                    found = self._get(f"/{topic}/groups/{group}")["settings"]
            is_begun = ABSENT in possible and len(possible) > 1  # its PUT has no answer
            if not is_begun and not any(_has_settings(found, value) for value in possible):
                self._complain(f"group {group} of {topic} has {found}, not one of {possible}")

    # Logs

    def _read(self, topic: str) -> Iterator[Stored]:
        more = "&include_deleted=true" if topic == ARCHIVED else ""
        for partition in self._topics[topic]["partitions"]:
            number, offset = partition["partition"], 0
            while True:
                where = f"partition={number}&offset={offset}&limit={_PAGE}{more}"
                page = self._get(f"/{topic}/messages?{where}")
                if page["damaged"]:
                    self._complain(f"{topic} has damage: {page['damaged']}")
                for message in page["messages"]:
                    yield Stored(number, message["offset"], message)
                if page["next"] >= partition["end_offset"] or page["next"] <= offset:
                    break
                offset = page["next"]

    def _check_log(self, topic: str) -> None:
        log, sent = self._logs[topic], self._promises.sent[topic]
        for value, count in Counter(stored.value for stored in log).items():
            if value not in sent:
                self._complain(f"{topic} has {value[:40]!r}, which nobody sent")
            elif count > 1:
                self._complain(f"{topic} has {value[:40]!r} {count} times")
        for stored in log:
            _, message = sent.get(stored.value, (0, {}))
            if message.get("key") != stored.message.get("key"):
                self._complain(f"{stored.message['id']} has another key")
        if topic != LATEST:
            for before, after in pairwise(log):
                if before.partition == after.partition and after.offset != before.offset + 1:
                    self._complain(f"{topic}: {after.message['id']} follows {before.offset}")
        incarnations = {
            value["incarnation"]
            for value in self._promises.possible(("topic", topic))
            if value != ABSENT
        }
        for stored in log:
            if stored.value in sent and sent[stored.value][0] not in incarnations:
                self._complain(f"{stored.message['id']} is of an earlier topic {topic}")
        if len(incarnations) == 1 and topic != LAZY:
            self._check_acknowledged(topic, incarnations.pop())

    def _check_acknowledged(self, topic: str, incarnation: int) -> None:
        found = {stored.message["id"]: stored.value for stored in self._logs[topic]}
        partitions = self._get(f"/{topic}")["partitions"]  # retention has been at work since
        starts = {p["partition"]: p["start_offset"] for p in partitions}
        if topic == TRIMMED:
            size_bytes = partitions[0]["bytes"]
            if starts[0] and size_bytes + SEGMENT_BYTES_MAX <= RETENTION_BYTES:
                self._complain(f"{topic} was trimmed to {size_bytes} bytes")
        elif topic not in (ARCHIVED, LATEST) and any(starts.values()):
            self._complain(f"{topic} begins at {starts}")
        newest: dict[str, int] = defaultdict(lambda: -1)
        for stored in self._logs[topic]:
            key = str(stored.message.get("key"))
            newest[key] = max(newest[key], stored.offset)
        for (_, message_id), message in self._promises.acknowledged(topic, incarnation):
            _, partition, offset = message_id.rsplit(":", 2)
            if message_id in found:
                if found[message_id] != message["value"]:
                    self._complain(f"{message_id} is {found[message_id][:40]!r}")
            elif topic == LATEST and newest[message["key"]] > int(offset):
                continue  # compacted
            elif topic == TRIMMED and int(offset) < starts[int(partition)]:
                continue
            else:
                self._complain(
                    f"{message_id}, acknowledged, is not there: {message['value'][:40]!r}"
                )

    # Groups at work

    def _check_states(self) -> None:
        if WORK not in self._topics or GROUP not in {
            group["group"] for group in self._get(f"/{WORK}/groups")["groups"]
        }:
            self._check_no_states()
            return
        states = {message_id: state for state in _STATES for message_id in self._peek(state)}
        may_be_leased = (WORK, GROUP) in self._promises.receiving
        for (_, message_id), _ in self._promises.acknowledged(WORK, 1):
            possible = self._state_of(message_id)
            if may_be_leased and "ready" in possible:
                possible.add("leased")
            if "dead" in possible:
                possible |= {"done", "gone"}  # its copy has arrived, or is on the way
            if states.get(message_id, "gone") not in possible:
                self._complain(
                    f"{message_id} is {states.get(message_id, 'gone')}, not {sorted(possible)}"
                )
        self._check_receive()

    def _state_of(self, message_id: str) -> set[str]:
        possible = self._promises.possible(("state", WORK, GROUP, message_id))
        return {"ready" if state == ABSENT else state for state in possible}

    def _check_no_states(self) -> None:
        for register, possible in self._promises.of_kind("state"):
            if ABSENT not in possible:
                self._complain(f"the group is gone, and {register[-1]} was {possible}")

    def _peek(self, state: str) -> Iterator[str]:
        after = ""
        while True:
            where = f"state={state}&limit={_PAGE}{after}"
            page = self._get(f"/{WORK}/groups/{GROUP}/peek?{where}")
            for message in page["messages"]:
                yield message.get("origin", message["id"])
            if page["next"] is None:
                return
            after = f"&after={page['next']}"

    def _check_receive(self) -> None:
        """Receive all that is ready: nothing that is done, and nothing that another has."""
        body = {"max_messages": _ENOUGH, "visibility": "1h", "consumer": "after"}
        path = f"/v1/topics/{WORK}/groups/{GROUP}"
        received = self._node.call("POST", f"{path}/receive", body)["messages"]
        for message in received:
            possible = self._state_of(message["id"])
            if "ready" not in possible:
                self._complain(f"{message['id']} is delivered; it was {sorted(possible)}")
        for register, receipts in self._promises.of_kind("receipt"):
            if self._state_of(str(register[-1])) == {"leased"} and len(receipts) == 1:
                answer = self._node.call("POST", f"{path}/ack", {"receipts": receipts})
                if answer["settled"] != 1:
                    self._complain(f"the lease of {register[-1]} is lost: {answer}")

    def _check_dead_letters(self) -> None:
        certain, possible = set(), set()
        for register, values in self._promises.of_kind("state"):
            if "dead" in values:
                possible.add(str(register[-1]))
            if values == ["dead"]:
                certain.add(str(register[-1]))
        found: list[str] = []

        def are_there() -> bool:
            found[:] = self._dead_letters()
            return certain <= set(found)

        try:
            eventually(are_there, "dead letters", seconds=self._patience_s)
        except AssertionError:
            self._complain(f"dead letters are missing: {sorted(certain - set(found))}")
        for origin, count in Counter(found).items():
            if count > 1 or origin not in possible:
                self._complain(f"{origin} is a dead letter {count} times")

    def _dead_letters(self) -> list[str]:
        if WORK + DEAD_LETTERS not in {topic["name"] for topic in self._get("")["topics"]}:
            return []
        letters = self._get(f"/{WORK}/dead?limit={_PAGE}")["messages"]
        return [letter["origin"] for letter in letters]

    # The rest

    def _check_delayed(self) -> None:
        if LATER not in self._topics:
            return
        found: dict[str, str] = {}
        for stored in self._logs[LATER]:
            answer = self._node.call("GET", f"/v1/messages/{stored.message['id']}")
            is_waiting = answer["state"] == "scheduled"
            found[answer["id"]] = answer["deliver_at"] if is_waiting else answer["state"]
        listed = self._get(f"/{LATER}/scheduled?limit={_PAGE}")["messages"]
        waiting = {message["id"]: message["deliver_at"] for message in listed}
        if waiting != {k: v for k, v in found.items() if v not in ("cancelled", "available")}:
            self._complain(f"the list of delayed messages is {waiting}, not {found}")
        for (_, message_id), possible in self._promises.of_kind("due"):
            if ABSENT not in possible and found.get(str(message_id)) not in possible:
                self._complain(
                    f"{message_id} is {found.get(str(message_id))}, not one of {possible}"
                )

    def _check_dedup(self) -> None:
        """Send again what has a dedup id: it is known."""
        again = {
            message_id: message
            for (_, message_id), message in self._promises.acknowledged(WORK, 1)
            if "dedup_id" in message
        }
        if WORK not in self._topics or not again:
            return
        body = {"messages": list(again.values())}
        results = self._node.call("POST", f"/v1/topics/{WORK}/messages", body)["results"]
        for message_id, result in zip(again, results, strict=True):
            if result.get("duplicate_of") != message_id:
                self._complain(f"the dedup id of {message_id} is forgotten: {result}")

    def _check_key_search(self) -> None:
        """Search for keys: the index knows the newest message of each."""
        newest = {
            stored.message["key"]: stored.message["id"]
            for stored in self._logs.get(LATEST, [])
            if "key" in stored.message
        }
        for key in sorted(newest)[:SEARCHES]:
            found = self._ask(f"/v1/topics/{LATEST}/trace?key={key}&limit=1")
            traces = found.json["traces"] if found.status == 200 else []
            if [trace["message"]["id"] for trace in traces] != [newest[key]]:
                self._complain(f"the search for {key} finds not {newest[key]}: {found}")

    def _check_new_messages(self) -> None:
        """Publish to each partition: no acknowledged offset is given again."""
        for topic in (WORK, TRIMMED, ARCHIVED, LATEST, LATER):
            if topic not in self._topics:
                continue
            behind: dict[int, int] = defaultdict(lambda: -1)
            for (_, message_id), _ in self._promises.acknowledged(topic, None):
                _, partition, offset = message_id.rsplit(":", 2)
                behind[int(partition)] = max(behind[int(partition)], int(offset))
            numbers = [p["partition"] for p in self._topics[topic]["partitions"]]
            body = {"messages": [{"value": "new", "partition": number} for number in numbers]}
            results = self._node.call("POST", f"/v1/topics/{topic}/messages", body)["results"]
            for result in results:
                if result["offset"] <= behind[result["partition"]]:
                    self._complain(f"{result['id']} is given again")


def check(node: RunningNode, promises: Promises, patience_s: float = PATIENCE_S) -> None:
    """Raise ``BrokenPromises`` unless the node keeps all promises and its folder is sound.

    Dead letters have ``patience_s`` to arrive.
    """
    checked = PromiseCheck(node, promises, patience_s)
    try:
        checked.run()
    except AssertionError as error:
        raise BrokenPromises(f"a request is refused: {error}") from error
    report = verify_data_dir(RealDisk(), node.data_dir)
    if not report.is_sound:
        damage = [str(found) for log in report.logs for found in log.report.damage]
        checked.broken.append(f"doctor --verify: {[*report.problems, *damage]}")
    raise_broken(checked.broken)


def raise_broken(broken: list[str]) -> None:
    """Raise what is broken, if anything is."""
    if broken:
        shown = "\n  ".join(broken[:SHOWN_MAX])
        raise BrokenPromises(f"{len(broken)} broken promises:\n  {shown}")


def _is_topic(found: dict[str, Any] | None, expected: Any) -> bool:
    if found is None or expected == ABSENT:
        return found is None and expected == ABSENT
    return len(found["partitions"]) == expected["partitions"] and _has_settings(
        found["settings"], expected["settings"]
    )


def _has_settings(found: Any, expected: Any) -> bool:
    if ABSENT in (found, expected):
        return bool(found == expected)
    return all(found.get(name) == value for name, value in expected.items())


def _shown(topic: dict[str, Any] | None) -> object:
    return topic if topic is None else (topic["partitions"], topic["settings"])
