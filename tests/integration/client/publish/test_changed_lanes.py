"""Clients that publish on while the lanes of their topic change: a name keeps its meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from goq.client import Client
from goq.client._sync.publish import publisher as publisher_module
from goq.client._sync.publish.frame_publisher import post_frames
from goq.client._sync.publish.publisher import PreparedBatch, Publisher
from goq.client.delivery_options import DeliveryOptions
from goq.client.errors import PartlyStored
from goq.client.message_batch import MessageBatch
from goq.errors import InvalidInput, LanesChanged, TimedOut, Unavailable
from goq.model import Message
from tests.support.api import frames as f
from tests.support.node.running_node import RunningNode, running_node

BEFORE, AFTER = "high,normal,low", "urgent,high,normal,low"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningNode]:
    with running_node() as node:
        yield node


@pytest.fixture
def q(running: RunningNode) -> Iterator[Client]:
    """A client that knows the topic ``t``, whose lanes are those before."""
    with Client(running.url, retries="2s") as client:
        client.create_topic("t", 2, settings={"priority.lanes": BEFORE})
        client.publish("t", b"first", priority="low")
        yield client
        client.delete_topic("t")


def change_lanes(running: RunningNode, lanes: str = AFTER) -> None:
    with Client(running.url) as other:
        other.alter_topic("t", settings={"priority.lanes": lanes})


def lanes_by_value(q: Client) -> dict[bytes | None, str]:
    """The lane of each message but the first one, by the present names."""
    found = [(message.value, message.priority) for message in q.read_log("t")]
    assert len(dict(found)) == len(found), "a message is there twice"
    return {value: lane for value, lane in found if value != b"first"}


def test_a_named_lane_is_the_one_that_has_the_name_when_the_message_is_stored(
    running: RunningNode, q: Client
) -> None:
    with q.producer("t", linger="1h") as producer:
        producer.send(b"queued", priority="high")
        producer.send(b"of no lane")
        change_lanes(running)
        producer.send(b"in the new lane", priority="urgent")
        q.publish("t", b"at once", priority="normal")
    applied = q.publish("t", b"numbered", priority=1)
    assert not applied.duplicate
    assert lanes_by_value(q) == {
        b"queued": "high",
        b"of no lane": "normal",
        b"in the new lane": "urgent",
        b"at once": "normal",
        b"numbered": "high",
    }


def test_the_default_lane_that_was_named_is_no_other_lane_later(
    running: RunningNode, q: Client
) -> None:
    with q.producer("t", linger="1h") as producer:
        producer.send(b"v", priority="normal")
        change_lanes(running, "normal,slow,slower,slowest")
    assert lanes_by_value(q) == {b"v": "normal"}


def test_a_topic_that_is_made_anew_numbers_by_its_own_lanes(
    running: RunningNode, q: Client
) -> None:
    with Client(running.url) as other:
        other.delete_topic("t")
        other.create_topic("t", 2, settings={"priority.lanes": "low,normal,high"})
    q.publish("t", b"v", priority="high")
    assert lanes_by_value(q) == {b"v": "high"}


def test_a_message_whose_lane_is_gone_is_refused_alone(running: RunningNode, q: Client) -> None:
    change_lanes(running, "high,normal")
    with pytest.raises(InvalidInput, match="there is no lane 'low'"):
        q.publish("t", b"refused", priority="low")
    q.publish("t", b"stored", priority="high")
    assert lanes_by_value(q) == {b"stored": "high"}


def prepared(q: Client, **lanes: str) -> tuple[Publisher, PreparedBatch]:
    """A batch that was divided by the lanes before: values with their lanes."""
    publisher = Publisher(q._http, "t")
    batch = MessageBatch()
    for number, (value, lane) in enumerate(lanes.items()):
        message = publisher.applied(Message(value.encode()), DeliveryOptions(lane))
        batch.add(message, 100, number % 2)
    return publisher, publisher.prepare(batch)


def test_a_batch_that_may_be_stored_under_the_lanes_before_is_not_stored_twice(
    running: RunningNode, q: Client
) -> None:
    publisher, job = prepared(q, a="high", b="low")
    sent = list(publisher.send(job))
    job.is_doubtful = True  # as if the answer had been lost
    change_lanes(running, "high,normal,low,lowest")
    assert [one.id for one in publisher.send(job)] == [one.id for one in sent]
    assert lanes_by_value(q) == {b"a": "high", b"b": "low"}


def test_a_batch_of_which_a_part_is_stored_ends_whole_and_once(
    running: RunningNode, q: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, job = prepared(q, a="high", b="low")

    def post_one(http: Any, topic: str, frames: Any, terms: Any) -> Any:
        """Store one frame; the other meets a leader that has heard of the change."""
        monkeypatch.undo()
        [stored] = post_frames(http, topic, frames[:1], terms)
        change_lanes(running, "high,low,normal")
        raise PartlyStored(LanesChanged("changed"), {0: stored})

    monkeypatch.setattr(publisher_module, "post_frames", post_one)
    assert len(publisher.send(job)) == 2
    assert lanes_by_value(q) == {b"a": "high", b"b": "low"}


def test_a_part_that_cannot_be_stored_leaves_the_outcome_unknown(
    running: RunningNode, q: Client
) -> None:
    publisher, job = prepared(q, a="high", b="low")
    job.is_doubtful = True
    change_lanes(running, "high,normal")
    with pytest.raises(TimedOut, match="there is no lane 'low'"):
        publisher.send(job)


def test_nodes_that_disagree_are_asked_again_until_the_time_for_retries_is_over(
    running: RunningNode, q: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def refuse(*_: object) -> None:
        raise LanesChanged("this node has heard of others")

    monkeypatch.setattr(publisher_module, "post_frames", refuse)
    monkeypatch.setattr(publisher_module, "sleep", pauses.append)
    with Client(running.url, retries="200ms") as hasty:
        publisher, job = prepared(hasty, a="high")
        with pytest.raises(Unavailable, match="different lanes"):
            publisher.send(job)
    assert lanes_by_value(q) == {}
    assert pauses
    assert all(0 <= pause_s < 0.2 for pause_s in pauses)


def test_a_replay_into_a_topic_goes_by_the_lanes_that_it_has(
    running: RunningNode, q: Client
) -> None:
    q.create_topic("source", 1)
    for number in range(4):
        q.publish("source", b"%d" % number, priority="low")
    sent: list[int] = []

    def before_send(count: int) -> None:
        sent.append(count)
        if len(sent) == 2:
            change_lanes(running)

    q.replay_into(q.replay("source"), "t", batch=1, before_send=before_send)
    change_lanes(running, BEFORE + ",after")
    assert lanes_by_value(q) == {b"0": "low", b"1": "after", b"2": "after", b"3": "after"}
    q.delete_topic("source")


def test_frames_that_name_other_lanes_are_refused(running: RunningNode, q: Client) -> None:
    path = "/v1/topics/t/messages"
    headers = {**f.FRAMES, "Goq-Lanes": AFTER}
    answer = running.request("POST", path, f.placed(f.frame(b"v"), 0), headers)
    assert (answer.status, answer.json["code"]) == (409, "lanes_changed")
    assert answer.json["field"] == "Goq-Lanes"
    assert AFTER in answer.json["detail"]
    assert lanes_by_value(q) == {}
    headers["Goq-Lanes"] = BEFORE
    assert running.request("POST", path, f.placed(f.frame(b"v"), 0), headers).status == 200
    change_lanes(running, "numbers")
    large = f.placed(f.frame(bytes(300_000)), 0)
    assert running.request("POST", path, large, headers).status == 409
    headers["Goq-Lanes"] = "numbers"
    assert running.request("POST", path, large, headers).status == 200
