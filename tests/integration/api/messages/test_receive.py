from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest

from goq import limits
from goq.frame.validation import check_frame
from tests.support.api import frames as f
from tests.support.api.calls import group_of, publish, receive, settle, values, waiting
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode

MIB = limits.MIB
NOTHING = {"settled": 0, "failed": []}


def lost(*receipts: str) -> list[dict[str, str]]:
    return [{"receipt": receipt, "code": "lease_lost"} for receipt in receipts]


def test_a_received_message_says_what_it_is_and_how_long_it_is_held(
    node: RunningNode, topic: str
) -> None:
    (result,) = publish(node, topic, "x", key="k", headers={"a": "1"})
    (message,) = receive(node, topic, consumer="c-1", visibility="1h")
    assert message == {
        **result,
        "value": "x",
        "key": "k",
        "headers": {"a": "1"},
        "priority": "normal",
        "receipt": message["receipt"],
        "attempt": 1,
        "lease_until": message["lease_until"],
    }
    assert message["lease_until"] > message["timestamp"]
    assert receive(node, topic) == []


def test_messages_of_a_partition_come_in_order_and_at_most_as_many_as_asked(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, *"abcde", partition=1)
    assert values(receive(node, topic, max_messages=2)) == ["a", "b"]
    assert values(receive(node, topic, max_messages=1)) == ["c"]
    assert values(receive(node, topic)) == ["d", "e"]


def test_one_receive_takes_from_all_partitions(node: RunningNode, topic: str) -> None:
    for partition in range(3):
        publish(node, topic, "x", partition=partition)
    assert {m["partition"] for m in receive(node, topic)} == {0, 1, 2}


def test_groups_each_get_every_message(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x")
    assert values(receive(node, topic, "one")) == values(receive(node, topic, "two")) == ["x"]


def test_what_is_acknowledged_is_done_and_can_be_settled_no_more(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "x")
    (message,) = receive(node, topic)
    assert settle(node, topic, "ack", message["receipt"]) == {"settled": 1, "failed": []}
    assert group_of(node, topic)["lag"] == 0
    for verb in ("nack", "reject", "release", "extend"):
        answer = settle(node, topic, verb, message["receipt"])
        assert answer == {"settled": 0, "failed": lost(message["receipt"])}
    assert settle(node, topic, "ack", message["receipt"]) == {"settled": 1, "failed": []}
    assert settle(node, topic, "ack", message["receipt"], group="other")["settled"] == 0


def test_a_run_of_receipts_settles_at_once_and_in_parts(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abcdefghij", partition=0)
    first = receive(node, topic)[0]["receipt"]
    partition, token, _ = first.split(":")
    run = f"{partition}:{token}"
    assert settle(node, topic, "reject", f"{run}:3+2") == {"settled": 2, "failed": []}
    answer = settle(node, topic, "ack", f"{run}:0+10")
    assert answer == {"settled": 8, "failed": lost(f"{run}:3+2")}
    assert settle(node, topic, "nack", f"{run}:0+10")["failed"] == lost(f"{run}:0+10")


def test_the_same_receipt_twice_counts_once(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x")
    (message,) = receive(node, topic)
    assert settle(node, topic, "ack", *[message["receipt"]] * 3)["settled"] == 1


def test_receipts_of_nothing_are_lost(node: RunningNode, topic: str) -> None:
    for receipt in ("0:1:0", "2:9999999999999999999:5+999999999", "999999999:1:0"):
        assert settle(node, topic, "ack", receipt) == {"settled": 0, "failed": lost(receipt)}
    assert settle(node, topic, "ack", "0:1:0", group="unheard-of")["settled"] == 0
    assert settle(node, topic, "ack") == NOTHING


def test_a_receipt_is_of_one_group(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x")
    (message,) = receive(node, topic, "one")
    receive(node, topic, "two")
    assert settle(node, topic, "ack", message["receipt"], group="two")["settled"] == 0
    assert settle(node, topic, "ack", message["receipt"], group="one")["settled"] == 1


def test_a_message_given_back_comes_again_with_another_attempt(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "x")
    (first,) = receive(node, topic)
    assert settle(node, topic, "nack", first["receipt"], reason="no")["settled"] == 1
    (second,) = receive(node, topic)
    assert (second["attempt"], second["id"]) == (2, first["id"])
    assert second["receipt"] != first["receipt"]
    assert settle(node, topic, "ack", first["receipt"])["failed"] == lost(first["receipt"])
    assert settle(node, topic, "ack", second["receipt"])["settled"] == 1


def test_a_message_given_back_with_a_delay_waits_for_its_time(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "x")
    (message,) = receive(node, topic)
    settle(node, topic, "nack", message["receipt"], delay="1h")
    assert receive(node, topic) == []
    group = group_of(node, topic)
    assert (group["ready"], group["retry"], group["lag"]) == (0, 1, 1)


def test_a_message_given_back_comes_to_who_waits_when_its_time_has_come(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "x")
    (message,) = receive(node, topic)
    settle(node, topic, "nack", message["receipt"], delay="100ms")
    (again,) = receive(node, topic, wait="10s")
    assert (again["id"], again["attempt"]) == (message["id"], 2)


def test_a_lease_that_runs_out_gives_the_message_to_the_next(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x")
    (first,) = receive(node, topic, visibility="50ms")
    (second,) = receive(node, topic, wait="10s")
    assert second["attempt"] == 2
    assert settle(node, topic, "ack", first["receipt"])["failed"] == lost(first["receipt"])


def test_an_extended_lease_ends_later(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x")
    (message,) = receive(node, topic, visibility="30s")
    before = node.call("GET", f"/v1/topics/{topic}/groups/g/peek?state=leased")["messages"][0]
    assert before["lease_until"] == message["lease_until"]
    assert settle(node, topic, "extend", message["receipt"], visibility="1h")["settled"] == 1
    after = node.call("GET", f"/v1/topics/{topic}/groups/g/peek?state=leased")["messages"][0]
    assert after["lease_until"] > before["lease_until"]
    assert settle(node, topic, "ack", message["receipt"])["settled"] == 1


def receive_frames(node: RunningNode, topic: str, messages_max: int) -> Any:
    path = f"/v1/topics/{topic}/groups/g/receive"
    answer = node.request("POST", path, {"max_messages": messages_max}, f.ACCEPT_FRAMES)
    assert answer.headers["content-type"] == "application/vnd.goq.frames"
    return f.answered(answer.body)


def test_a_large_frame_of_a_receive_is_cut_to_what_was_leased(
    node: RunningNode, topic: str
) -> None:
    large = [letter * 10_000 for letter in "abcdef"]
    publish(node, topic, *large, partition=1)
    receive(node, topic, max_messages=1)
    preface, frames = receive_frames(node, topic, 3)
    (delivery,) = preface["deliveries"]
    assert (delivery["partition"], delivery["ranges"], delivery["frames"]) == (1, [[1, 4, 1]], 1)
    ((partition, view),) = frames
    check_frame(view)
    assert (partition, view.header.base_offset) == (1, 1)
    assert [m.value for m in view.messages(0, 3)] == [v.encode() for v in large[1:4]]
    assert view.header.message_count == 3
    receipt = f"1:{delivery['token']}:1+3"
    assert settle(node, topic, "ack", receipt) == {"settled": 3, "failed": []}


def test_a_small_frame_of_a_receive_goes_out_as_it_is_and_the_ranges_say_what_was_leased(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, *"abcdefgh", partition=0)
    first = receive(node, topic)[0]["receipt"].rsplit(":", 1)[0]
    settle(node, topic, "nack", f"{first}:1", f"{first}:4+2")
    preface, ((_, view),) = receive_frames(node, topic, 9)
    assert sorted(preface["deliveries"][0]["ranges"]) == [[1, 2, 2], [4, 6, 2]]
    assert (view.header.base_offset, view.header.end_offset) == (0, 8)


def test_an_empty_receive_of_frames_is_a_preface(node: RunningNode, topic: str) -> None:
    path = f"/v1/topics/{topic}/groups/g/receive"
    assert f.answered(node.request("POST", path, {}, f.ACCEPT_FRAMES).body) == (
        {"deliveries": [], "lanes": "high,normal,low"},
        [],
    )


def test_a_waiting_receive_gets_what_is_published(node: RunningNode, topic: str) -> None:
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.extend(receive(node, topic, wait="20s")))
    thread.start()
    eventually(lambda: waiting(node, topic))
    publish(node, topic, "x")
    thread.join(60)
    assert values(found) == ["x"]


def test_each_message_wakes_one_of_those_that_wait(node: RunningNode, topic: str) -> None:
    found: list[str] = []

    def consume() -> None:
        found.extend(values(receive(node, topic, wait="20s", max_messages=1)))

    threads = [threading.Thread(target=consume) for _ in range(5)]
    for thread in threads:
        thread.start()
    eventually(lambda: waiting(node, topic) == 5)
    publish(node, topic, "a", "b", "c", "d", "e")
    for thread in threads:
        thread.join(60)
    assert sorted(found) == ["a", "b", "c", "d", "e"]


def test_a_client_that_leaves_while_it_waits_gets_nothing(node: RunningNode, topic: str) -> None:
    body = json.dumps({"wait": "30s", "consumer": "gone"}).encode()
    head = (
        f"POST /v1/topics/{topic}/groups/g/receive HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(node.address, timeout=60) as raw:
        raw.sendall(head.encode() + body)
        eventually(lambda: waiting(node, topic))
    eventually(lambda: not waiting(node, topic))
    publish(node, topic, "x")
    assert group_of(node, topic)["leased"] == 0
    assert [m["attempt"] for m in receive(node, topic)] == [1]


def test_a_request_that_ends_with_the_connection_leaves_no_warning(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "x")
    head = f"POST /v1/topics/{topic}/groups/g/receive HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(5):
        with socket.create_connection(node.address, timeout=60) as raw:
            raw.sendall(head.encode())
            raw.shutdown(socket.SHUT_WR)
            raw.makefile("rb").read()
    eventually(lambda: not waiting(node, topic))
    assert node.call("GET", "/version")


def test_a_json_answer_is_bounded_and_the_rest_is_ready_again_without_an_attempt(
    node: RunningNode, topic: str
) -> None:
    large = f.placed(f.frame(*[bytes(MIB)] * 6, compress=True), 0)
    node.request("POST", f"/v1/topics/{topic}/messages", large + large, f.FRAMES)
    path = f"/v1/topics/{topic}/groups/g/receive"
    offsets: list[int] = []
    while len(offsets) < 12:
        answer = node.request("POST", path, {"max_messages": 100})
        assert len(answer.body) <= limits.RECEIVE_BYTES_MAX + 100
        messages = answer.json["messages"]
        assert messages
        assert {m["attempt"] for m in messages} == {1}
        offsets += [m["offset"] for m in messages]
        receipts = [m["receipt"] for m in messages]
        assert settle(node, topic, "ack", *receipts)["settled"] == len(receipts)
    assert offsets == list(range(12))
    assert group_of(node, topic)["lag"] == 0


def test_a_receive_of_a_deleted_topic_ends(node: RunningNode, topic: str) -> None:
    codes: list[Any] = []
    path = f"/v1/topics/{topic}/groups/g/receive"
    thread = threading.Thread(
        target=lambda: codes.append(node.request("POST", path, {"wait": "20s"}).json["code"])
    )
    thread.start()
    eventually(lambda: waiting(node, topic))
    node.call("DELETE", f"/v1/topics/{topic}")
    thread.join(60)
    assert codes == ["topic_not_found"]


def test_thousands_of_scattered_retries_are_handed_over_at_once(
    node: RunningNode, topic: str
) -> None:
    """Every second message of as many frames is given back: work must not be frames times spans."""
    frames = b"".join(f.placed(f.frame(b"x", b"y"), 0) for _ in range(1000))
    for _ in range(4):
        assert node.request("POST", f"/v1/topics/{topic}/messages", frames, f.FRAMES).status == 200
    receipts = [message["receipt"] for message in receive(node, topic, max_messages=8000)]
    settle(node, topic, "nack", *receipts[::2])
    path = f"/v1/topics/{topic}/groups/g/receive"
    answer = node.request("POST", path, {"max_messages": 8000}, f.ACCEPT_FRAMES)
    preface, found = f.answered(answer.body)
    assert sum(end - start for d in preface["deliveries"] for start, end, _ in d["ranges"]) == 4000
    assert len(found) == 4000


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.goq.frames"])
def test_messages_of_an_answer_without_room_are_ready_again_at_once(
    node: RunningNode, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"room-{len(accept)}"
    publish(node, topic, "x" * 100_000)
    unsent = node.node._listeners._server._shared.unsent
    with monkeypatch.context() as patched:
        patched.setattr(unsent, "_bytes_max", 1000)
        path = f"/v1/topics/{topic}/groups/g/receive"
        refused = node.request("POST", path, {"visibility": "1h"}, {"Accept": accept})
    assert (refused.status, refused.json["code"]) == (429, "too_many_requests")
    assert refused.headers["retry-after"] == "1"
    (message,) = receive(node, topic, wait="30s")
    assert message["attempt"] == 1


def test_each_message_goes_to_a_half_closed_client_or_is_ready_again(
    node: RunningNode, topic: str
) -> None:
    assert receive(node, topic) == []  # the group is known
    publish(node, topic, *["x"] * 30)
    body = json.dumps({"consumer": "gone"}).encode()
    head = (
        f"POST /v1/topics/{topic}/groups/g/receive HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sent = 0
    for _ in range(30):
        with socket.create_connection(node.address, timeout=60) as raw:
            raw.sendall(head.encode() + body)
            raw.shutdown(socket.SHUT_WR)
            sent += b'"receipt"' in raw.makefile("rb").read()
    eventually(lambda: group_of(node, topic)["leased"] == sent)


def test_the_header_accept_chooses_the_form_of_the_answer(node: RunningNode, topic: str) -> None:
    published = {"messages": [{"value": str(n), "partition": 0} for n in range(4)]}
    node.call("POST", f"/v1/topics/{topic}/messages", published)
    frames, json_type = "application/vnd.goq.frames", "application/json"
    receive = f"/v1/topics/{topic}/groups/g/receive"
    for accept, form in (
        (f"{frames};q=0, */*", json_type),
        (f"{json_type}, {frames};q=0.5", json_type),
        ("application/x-ndjson;q=0, */*", json_type),
        ("Application/vnd.GOQ.frames", frames),
    ):
        for method, path in (
            ("GET", f"/v1/topics/{topic}/messages?partition=0"),
            ("GET", f"/v1/topics/{topic}/events?partition=0"),
            ("POST", receive),
        ):
            body = {"max_messages": 1} if method == "POST" else None
            answer = node.request(method, path, body, {"Accept": accept})
            assert (answer.status, answer.headers["content-type"]) == (200, form)
