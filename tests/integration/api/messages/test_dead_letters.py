"""Dead letters by the API: what died is listed, put back, purged; nothing is lost on the way."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from goq import limits
from goq.units import parse_time_us
from tests.support.api.calls import publish, receive, settle, values
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


def dead(node: RunningNode, topic: str, query: str = "") -> list[dict[str, Any]]:
    answer = node.call("GET", f"/v1/topics/{topic}/dead?{query}")
    found: list[dict[str, Any]] = answer["messages"]
    return found


def redrive(node: RunningNode, topic: str, **asked: Any) -> dict[str, Any]:
    answer: dict[str, Any] = node.call("POST", f"/v1/topics/{topic}/redrive", asked)
    return answer


def purge(node: RunningNode, topic: str, query: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = node.call("DELETE", f"/v1/topics/{topic}/dead?{query}")
    return answer


def take(node: RunningNode, topic: str, group: str = "g") -> list[dict[str, Any]]:
    """Receive all there is, from all partitions."""
    found: list[dict[str, Any]] = []
    while more := receive(node, topic, group, consumer="c1", wait="100ms" if found else "5s"):
        found += more
    return found


def reject_all(node: RunningNode, topic: str, *, group: str = "g", reason: str = "") -> int:
    receipts = [message["receipt"] for message in take(node, topic, group)]
    return int(settle(node, topic, "reject", *receipts, group=group, reason=reason)["settled"])


def died(node: RunningNode, topic: str, count: int) -> list[dict[str, Any]]:
    eventually(lambda: len(dead(node, topic)) >= count)
    found = dead(node, topic)
    assert len(found) == count
    return found


def arrived(node: RunningNode, topic: str, count: int, group: str = "g") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        more = receive(node, topic, group, wait="10s")
        assert more, "not all of them came"
        found += more
    assert not receive(node, topic, group)
    return found


def test_a_rejected_message_tells_where_it_comes_from_and_why_it_died(
    node: RunningNode, topic: str
) -> None:
    [published] = publish(node, topic, "bad", key="k", headers={"source": "shop"})
    reject_all(node, topic, reason="no such article")
    [letter] = died(node, topic, 1)
    assert letter["id"].startswith(f"{topic}.dlq:{published['partition']}:")
    assert letter["origin"] == published["id"]
    assert (letter["value"], letter["key"]) == ("bad", "k")
    assert letter["headers"] == {"source": "shop"}
    assert (letter["group"], letter["attempts"]) == ("g", 1)
    assert (letter["cause"], letter["reason"]) == ("rejected", "no such article")
    assert letter["published_at"] == published["timestamp"] <= letter["died_at"]
    [failure] = letter["failures"]
    assert (failure["consumer"], failure["cause"]) == ("c1", "rejected")
    assert failure["reason"] == "no such article"
    assert "redrives" not in letter


def test_a_message_dies_after_its_last_attempt_and_all_of_them_are_told(
    node: RunningNode, topic: str
) -> None:
    settings = {"max_attempts": 3, "backoff.initial": "0s"}
    node.call("PUT", f"/v1/topics/{topic}/groups/g", {"settings": settings})
    publish(node, topic, "bad")
    for number in range(3):
        [message] = receive(node, topic, wait="5s")
        settle(node, topic, "nack", message["receipt"], reason=f"no {number}")
    [letter] = died(node, topic, 1)
    assert (letter["attempts"], letter["cause"], letter["reason"]) == (3, "nacked", "no 2")
    assert [failure["reason"] for failure in letter["failures"]] == ["no 0", "no 1", "no 2"]


def test_an_exact_reason_selects_those_of_this_reason_alone(node: RunningNode, topic: str) -> None:
    reasons = ["timeout", "timeout in payment", "", "a+b & c=\r\n\u20ac", "timeout"]
    publish(node, topic, *reasons, partition=0)
    for message in take(node, topic):
        settle(node, topic, "reject", message["receipt"], reason=message["value"])
    died(node, topic, len(reasons))
    node.call("POST", f"/v1/topics/{topic}.dlq/messages", {"messages": [{"value": "never failed"}]})
    for reason in set(reasons):
        asked = urlencode({"reason_is": reason})
        found = values(dead(node, topic, asked))
        assert found == [one for one in reasons if one == reason]
        assert purge(node, topic, f"{asked}&dry_run=true")["matched"] == len(found)
        assert redrive(node, topic, reason_is=reason, dry_run=True)["redriven"] == len(found)
    assert purge(node, topic, "reason_is=")["purged"] == 1
    assert len(dead(node, topic)) == len(reasons)
    assert redrive(node, topic, reason_is="timeout")["redriven"] == 2


def test_the_topic_of_dead_letters_is_like_the_one_that_they_are_of(node: RunningNode) -> None:
    topic = "like-it"
    settings = {"fsync": "interval", "retention.age": "3d", "priority.lanes": "first,second"}
    node.call("POST", "/v1/topics", {"name": topic, "partitions": 2, "settings": settings})
    publish(node, topic, "bad", partition=1)
    reject_all(node, topic)
    [letter] = died(node, topic, 1)
    assert letter["partition"] == 1
    made = node.call("GET", f"/v1/topics/{topic}.dlq")
    assert len(made["partitions"]) == 2
    assert {n: made["settings"][n] for n in settings} == settings
    assert made["settings"]["delivery.dead_letters"] == "false"


def test_partitions_are_added_to_a_topic_of_dead_letters_that_lacks_them(
    node: RunningNode, topic: str
) -> None:
    node.call("POST", "/v1/topics", {"name": f"{topic}.dlq", "partitions": 1})
    publish(node, topic, "bad", partition=2)
    reject_all(node, topic)
    assert died(node, topic, 1)[0]["partition"] == 2


def test_a_topic_may_have_the_longest_name_and_its_dead_letters_too(node: RunningNode) -> None:
    topic = "n" * limits.NAME_CHARS_MAX
    node.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    publish(node, topic, "bad")
    reject_all(node, topic)
    [letter] = died(node, f"{topic}.dlq", 1)
    assert node.call("GET", f"/v1/messages/{letter['id']}")["value"] == "bad"
    assert receive(node, f"{topic}.dlq", "mender")
    assert redrive(node, topic)["redriven"] == 1
    assert values(arrived(node, topic, 1)) == ["bad"]
    for name in (topic + "n", topic + "n.dlq", ".dlq"):
        assert node.request("POST", "/v1/topics", {"name": name}).status == 400
    group = node.request("PUT", f"/v1/topics/{topic}/groups/{topic}.dlq", {"settings": {}})
    assert group.status == 400


def test_what_is_put_back_comes_to_the_group_that_gave_it_up_alone(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "a", "b", key="k")
    other = receive(node, topic, "other")
    settle(node, topic, "ack", *[m["receipt"] for m in other], group="other")
    reject_all(node, topic, reason="broken")
    died(node, topic, 2)
    answer = redrive(node, topic)
    assert (answer["matched"], answer["redriven"], answer["next"]) == (2, 2, None)
    found = arrived(node, topic, 2)
    assert values(found) == ["a", "b"]
    assert found[0]["partition"] == other[0]["partition"]
    assert found[0]["headers"]["goq-redrives"] == "1"
    assert found[0]["headers"]["goq-dead-reason"] == "broken"
    assert not receive(node, topic, "other", wait="50ms")
    assert not receive(node, topic, "new", wait="50ms", max_messages=100)[2:]
    assert dead(node, topic) == []
    assert redrive(node, topic)["redriven"] == 0


def test_what_dies_again_tells_of_its_earlier_lives(node: RunningNode, topic: str) -> None:
    [published] = publish(node, topic, "bad")
    for life in range(3):
        reject_all(node, topic, reason=f"life {life}")
        [letter] = died(node, topic, 1)
        assert letter.get("redrives", 0) == life
        redrive(node, topic)
    assert [life["reason"] for life in letter["earlier"]] == ["life 0", "life 1"]
    assert letter["earlier"][0]["id"] == published["id"]
    assert letter["earlier"][0]["failures"][0]["reason"] == "life 0"
    assert letter["reason"] == "life 2"
    assert letter["origin"] != published["id"]


def test_a_message_that_was_put_back_too_often_stays_unless_forced(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REDRIVES_MAX", 1)
    publish(node, topic, "bad")
    for _ in range(2):
        reject_all(node, topic)
        died(node, topic, 1)
        answer = redrive(node, topic)
    assert (answer["matched"], answer["redriven"], answer["looped"]) == (1, 0, 1)
    assert len(dead(node, topic)) == 1
    assert redrive(node, topic, force=True)["redriven"] == 1


def test_what_a_producer_published_among_dead_letters_goes_only_where_it_is_told(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "bad")
    reject_all(node, topic)
    died(node, topic, 1)
    publish(node, f"{topic}.dlq", "foreign")
    answer = redrive(node, topic)
    assert (answer["matched"], answer["redriven"], answer["without_origin"]) == (2, 1, 1)
    assert [letter["value"] for letter in dead(node, topic)] == ["foreign"]
    other = f"{topic}-other"
    node.call("POST", "/v1/topics", {"name": other})
    answer = redrive(node, topic, to=other)
    assert (answer["redriven"], answer["without_origin"]) == (1, 0)
    assert dead(node, topic) == []


def test_dead_letters_are_chosen_by_group_reason_cause_key_time_and_id(
    node: RunningNode, topic: str
) -> None:
    first, second = publish(node, topic, "a", key="ka") + publish(node, topic, "b", key="kb")
    for message in take(node, topic):
        reason = "timeout of shop" if message["value"] == "a" else "no such article"
        settle(node, topic, "reject", message["receipt"], reason=reason)
    reject_all(node, topic, group="h", reason="other")
    letters = died(node, topic, 4)

    def origins(query: str) -> list[str]:
        return sorted(letter["value"] + letter["group"] for letter in dead(node, topic, query))

    assert origins("group=h") == ["ah", "bh"]
    assert origins("reason=article") == ["bg"]
    assert origins("cause=rejected&key=ka") == ["ag", "ah"]
    assert origins("cause=ttl") == []
    assert origins("key=none") == []
    assert origins("from_time=-1h&to_time=now") == ["ag", "ah", "bg", "bh"]
    assert origins("to_time=-1h") == []
    assert origins(f"ids={second['id']}") == ["bg", "bh"]
    assert origins(f"ids={letters[0]['id']},{letters[1]['id']}") == sorted(
        letter["value"] + letter["group"] for letter in letters[:2]
    )
    assert origins(f"ids={letters[0]['id']},{first['id']}&group=g&key=ka") == ["ag"]
    assert redrive(node, topic, group="g", reason="shop")["redriven"] == 1
    assert origins("") == ["ah", "bg", "bh"]
    assert purge(node, topic, "key=kb")["purged"] == 2
    assert origins("") == ["ah"]


def test_a_dry_run_counts_and_changes_nothing(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a", "b")
    reject_all(node, topic)
    died(node, topic, 2)
    assert redrive(node, topic, dry_run=True)["redriven"] == 2
    assert purge(node, topic, "dry_run=true")["purged"] == 2
    assert len(dead(node, topic)) == 2


def test_a_redrive_takes_times_in_milliseconds_too(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a")
    reject_all(node, topic)
    [letter] = died(node, topic, 1)
    died_ms = parse_time_us(letter["died_at"], now_us=0) / 1000
    for bounds, count in (({"from_time": died_ms}, 1), ({"to_time": died_ms}, 0)):
        assert redrive(node, topic, dry_run=True, **bounds)["redriven"] == count


def test_pages_and_portions_go_through_all_of_them(node: RunningNode, topic: str) -> None:
    for partition in range(3):
        publish(node, topic, "a", "b", "c", partition=partition)
    reject_all(node, topic)
    letters = died(node, topic, 9)
    paged, query = [], "limit=2"
    while True:
        answer = node.call("GET", f"/v1/topics/{topic}/dead?{query}")
        paged += answer["messages"]
        if answer["next"] is None:
            break
        query = f"limit=2&after={answer['next']}"
    assert paged == letters
    answer = redrive(node, topic, max_messages=4)
    assert answer["redriven"] == 4
    assert redrive(node, topic, max_messages=4, after=answer["next"])["redriven"] == 4
    assert purge(node, topic)["purged"] == 1
    assert len(arrived(node, topic, 8)) == 8


def test_a_search_looks_at_so_many_messages_and_says_where_to_go_on(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(2):
        publish(node, topic, "a", "b", "c", partition=partition)
    reject_all(node, topic)
    died(node, topic, 6)
    monkeypatch.setattr(limits, "DEAD_LETTERS_SCANNED_MAX", 2)
    found, after = 0, ""
    for _ in range(5):
        answer = node.call("GET", f"/v1/topics/{topic}/dead?group=g{after}")
        found += len(answer["messages"])
        if answer["next"] is None:
            break
        after = f"&after={answer['next']}"
    assert found == 6


def test_dead_letters_may_be_put_into_another_topic_for_all_its_groups(
    node: RunningNode, topic: str
) -> None:
    other = f"{topic}-repair"
    node.call("POST", "/v1/topics", {"name": other, "partitions": 1})
    publish(node, topic, "bad")
    reject_all(node, topic)
    died(node, topic, 1)
    assert redrive(node, topic, to=other)["redriven"] == 1
    for group in ("x", "y"):
        assert values(arrived(node, other, 1, group)) == ["bad"]


def test_whoever_holds_a_dead_letter_that_is_put_back_does_not_get_it_again(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "bad")
    reject_all(node, topic)
    died(node, topic, 1)
    [held] = receive(node, f"{topic}.dlq", "mender")
    redrive(node, topic)
    settle(node, f"{topic}.dlq", "nack", held["receipt"], group="mender", delay=0)
    assert not receive(node, f"{topic}.dlq", "mender", wait="50ms")
    assert not receive(node, f"{topic}.dlq", "late", wait="50ms")


def test_dead_letters_never_die(node: RunningNode, topic: str) -> None:
    publish(node, topic, "bad")
    reject_all(node, topic)
    died(node, topic, 1)
    settings = {"max_attempts": 1, "backoff.initial": "0s", "dead_letters.expired": True}
    node.call("PUT", f"/v1/topics/{topic}.dlq/groups/m", {"settings": settings})
    for _ in range(3):
        [held] = receive(node, f"{topic}.dlq", "m", wait="5s")
        settle(node, f"{topic}.dlq", "nack", held["receipt"], group="m")
    names = [each["name"] for each in node.call("GET", "/v1/topics")["topics"]]
    assert f"{topic}.dlq" in names
    assert f"{topic}.dlq.dlq" not in names


def test_a_topic_without_dead_letters_has_none_and_a_topic_that_is_none_is_not_found(
    node: RunningNode, topic: str
) -> None:
    assert dead(node, topic) == []
    assert redrive(node, topic)["matched"] == 0
    assert purge(node, topic)["matched"] == 0
    for path in ("/v1/topics/none/dead", "/v1/topics/none.dlq/dead"):
        assert node.request("GET", path).status == 404


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("cause=bad", "cause"),
        ("ids=a:b", "ids"),
        ("after=other:0:0", "after"),
        ("limit=0", "limit"),
        ("from_time=soon", "from_time"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    node: RunningNode, topic: str, query: str, field: str
) -> None:
    publish(node, topic, "bad")
    reject_all(node, topic)
    died(node, topic, 1)
    answer = node.request("GET", f"/v1/topics/{topic}/dead?{query}")
    assert (answer.status, answer.json["field"]) == (400, field)


def test_a_redrive_into_nowhere_is_refused(node: RunningNode, topic: str) -> None:
    publish(node, topic, "bad")
    reject_all(node, topic)
    died(node, topic, 1)
    for asked, status in (({"to": "none-such"}, 404), ({"to": f"{topic}.dlq"}, 400)):
        answer = node.request("POST", f"/v1/topics/{topic}/redrive", asked)
        assert (answer.status, answer.json["field"]) == (status, "to")
    assert node.request("POST", f"/v1/topics/{topic}/redrive", {"max_messages": 0}).status == 400
    assert len(dead(node, topic)) == 1


def test_dead_letters_may_go_to_a_topic_of_choice_and_back_by_its_group(
    node: RunningNode, topic: str
) -> None:
    chosen = f"{topic}-failed"
    node.call("POST", "/v1/topics", {"name": chosen, "partitions": 2})
    settings = {"settings": {"dead_letters.topic": chosen, "delivery.max_attempts": 1}}
    node.call("PATCH", f"/v1/topics/{topic}", settings)
    publish(node, topic, *(f"v{number}" for number in range(30)))
    assert reject_all(node, topic, reason="broken") == 30
    found: list[dict[str, Any]] = []
    eventually(lambda: found.extend(take(node, chosen)) or len(found) == 30)
    assert {message["partition"] for message in found} == {0}
    assert {message["headers"]["goq-dead-reason"] for message in found} == {"broken"}
    assert node.request("GET", f"/v1/topics/{topic}.dlq").status == 404
    peeked = node.call("GET", f"/v1/topics/{topic}/groups/g/peek?state=dead&limit=50")
    assert len(peeked["messages"]) == 30


def sharing(node: RunningNode, topic: str) -> tuple[str, str, str]:
    """Return two topics with a dead letter each, in a topic that both share."""
    chosen = f"{topic}-failed"
    sources = topic, f"{topic}-too"
    node.call("POST", "/v1/topics", {"name": chosen, "partitions": 1})
    node.call("POST", "/v1/topics", {"name": sources[1], "partitions": 1})
    for source in sources:
        node.call("PATCH", f"/v1/topics/{source}", {"settings": {"dead_letters.topic": chosen}})
        publish(node, source, f"of {source}")
        assert reject_all(node, source, reason="broken") == 1
    eventually(lambda: len(dead(node, chosen)) == 2)
    return *sources, chosen


def test_each_topic_has_its_own_of_the_dead_letters_in_a_topic_that_several_share(
    node: RunningNode, topic: str
) -> None:
    first, second, chosen = sharing(node, topic)
    for source in (first, second):
        (letter,) = dead(node, source)
        assert letter["id"].startswith(f"{chosen}:0:")
        assert (letter["value"], letter["reason"]) == (f"of {source}", "broken")
        peeked = node.call("GET", f"/v1/topics/{source}/groups/g/peek?state=dead")["messages"]
        assert [message["value"] for message in peeked] == [f"of {source}"]
    assert redrive(node, first)["redriven"] == 1
    assert [message["value"] for message in arrived(node, first, 1)] == [f"of {first}"]
    assert len(take(node, first, "other")) == 1  # the message, not its copy
    assert dead(node, first) == []
    assert len(dead(node, second)) == len(dead(node, chosen)) == 1
    assert purge(node, first)["purged"] == 0
    assert purge(node, second)["purged"] == 1
    assert dead(node, chosen) == []


def test_letters_of_several_topics_are_put_back_by_the_topic_that_they_died_in(
    node: RunningNode, topic: str
) -> None:
    _, second, chosen = sharing(node, topic)
    answer = node.request("POST", f"/v1/topics/{chosen}/redrive", {})
    assert (answer.status, answer.json["field"]) == (400, "to")
    assert second not in answer.json["detail"]
    assert redrive(node, chosen, to=second)["redriven"] == 2
    assert {message["value"] for message in arrived(node, second, 2)} == {
        f"of {topic}",
        f"of {second}",
    }


def test_a_dead_letter_in_a_topic_of_choice_tells_its_origin_that_retention_deleted(
    node: RunningNode, topic: str
) -> None:
    first, _, chosen = sharing(node, topic)
    (letter,) = dead(node, first)
    path = f"/v1/messages/{letter['id']}/trace"
    told = [(step["event"], step["id"]) for step in node.call("GET", path)["events"]]
    assert ("DEAD_LETTERED", letter["origin"]) in told
    node.clock.ahead_ms += 3_600_000
    try:
        settings = {"retention.age": "1m", "segment.age": "1m"}
        node.call("PATCH", f"/v1/topics/{first}", {"settings": settings})
        eventually(
            lambda: node.request("GET", f"/v1/messages/{letter['origin']}").status == 404,
            seconds=30,
        )
        steps = node.call("GET", path)["events"]
    finally:
        node.clock.ahead_ms -= 3_600_000
    (published,) = [step for step in steps if step["id"] == letter["id"]]
    assert published["from"] == letter["origin"]
    assert chosen in published["id"]


def test_a_message_that_only_claims_to_have_died_elsewhere_has_no_origin(
    node: RunningNode, topic: str
) -> None:
    first, _, chosen = sharing(node, topic)
    headers = {"goq-dead-id": f"{first}:0:0", "goq-dead-group": "g"}
    (forged,) = publish(node, chosen, "forged", headers=headers)
    shown = node.call("GET", f"/v1/topics/{chosen}/dead")["messages"]
    (letter,) = [each for each in shown if each["id"] == forged["id"]]
    assert (letter.get("origin"), letter["headers"]) == (None, headers)
    steps = node.call("GET", f"/v1/messages/{forged['id']}/trace")["events"]
    assert all("from" not in step for step in steps)


@pytest.mark.parametrize("target", ["{topic}", "__audit", "a b", 5])
def test_dead_letters_go_to_another_topic_that_may_be_published_to(
    node: RunningNode, topic: str, target: object
) -> None:
    chosen = target.format(topic=topic) if isinstance(target, str) else target
    body = {"settings": {"dead_letters.topic": chosen}}
    assert node.request("PATCH", f"/v1/topics/{topic}", body).status == 400
