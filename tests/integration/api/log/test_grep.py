"""Messages are found by a text in them, over all partitions, the newest first."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from goq import limits
from goq.broker.search import finder
from goq.client import Client
from tests.support.api.calls import publish
from tests.support.node.running_node import RunningNode


def find(node: RunningNode, topic: str, text: str, **asked: Any) -> dict[str, Any]:
    query = urlencode({"text": text, **asked})
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/search?{query}")
    return answer


def ids(answer: dict[str, Any]) -> list[str]:
    return [message["id"] for message in answer["messages"]]


def test_values_keys_and_headers_are_searched_the_newest_first(
    node: RunningNode, topic: str
) -> None:
    [value] = publish(node, topic, "a teapot, red", partition=2)
    [key] = publish(node, topic, "v", key="teapot-7", partition=0)
    [header] = publish(node, topic, "v", headers={"what": "my teapot"}, partition=1)
    publish(node, topic, "tea pot", headers={"teapot": "named so"})
    answer = find(node, topic, "teapot")
    assert ids(answer) == [header["id"], key["id"], value["id"]]
    assert (answer["next"], answer["searched"]) == (None, 4)
    assert [message.get("value") for message in answer["messages"]] == ["v", "v", "a teapot, red"]
    assert answer["messages"][1]["key"] == "teapot-7"
    for part, found in (("value", value), ("key", key), ("header", header)):
        assert ids(find(node, topic, "teapot", **{"in": part})) == [found["id"]]
    assert ids(find(node, topic, "teapot", **{"in": "key,value"})) == [key["id"], value["id"]]


def test_case_counts_unless_it_is_to_be_ignored(node: RunningNode, topic: str) -> None:
    [upper] = publish(node, topic, "ÄPFEL and PEARS")
    assert ids(find(node, topic, "pears")) == []
    assert ids(find(node, topic, "peARS", ignore_case="true")) == [upper["id"]]
    assert ids(find(node, topic, "äpfel", ignore_case="true")) == []


def test_a_text_is_no_expression(node: RunningNode, topic: str) -> None:
    publish(node, topic, "abc")
    [dots] = publish(node, topic, "a.c")
    assert ids(find(node, topic, "a.c")) == [dots["id"]]


def test_pages_go_on_where_the_one_before_ended(node: RunningNode, topic: str) -> None:
    wanted = [publish(node, topic, f"x{n}", partition=n % 3)[0]["id"] for n in range(7)]
    found, cursor = [], {}
    while True:
        answer = find(node, topic, "x", limit=2, **cursor)
        assert len(answer["messages"]) <= 2
        found += ids(answer)
        if answer["next"] is None:
            break
        cursor = {"cursor": answer["next"]}
    assert sorted(found) == sorted(wanted)
    assert found[0] == wanted[-1]


def test_the_times_bound_the_search(node: RunningNode, topic: str) -> None:
    times = [publish(node, topic, "x")[0]["timestamp"] for _ in range(3)]
    assert len(ids(find(node, topic, "x", from_time=times[1]))) == 2
    assert len(ids(find(node, topic, "x", to_time=times[1]))) == 1


def test_large_messages_come_over_several_pages(node: RunningNode, topic: str) -> None:
    size = limits.READ_BYTES_MAX // 3
    wanted = [publish(node, topic, f"{n}" * size, partition=0)[0]["id"] for n in range(5)]
    publish(node, topic, "behind", partition=0)
    found, cursor = [], {}
    while not found or cursor["cursor"] is not None:
        answer = find(node, topic, "0", **{"in": "value"}, **cursor)
        found += ids(answer)
        cursor = {"cursor": answer["next"]}
        if answer["next"] is None:
            break
    assert found == wanted[:1]
    found, cursor = [], {}
    for _ in range(10):
        query = {"in": "value", "ignore_case": "true", **cursor}
        answer = find(node, topic, "1" * 10, **query)
        found += ids(answer)
        if answer["next"] is None:
            break
        cursor = {"cursor": answer["next"]}
    assert found == wanted[1:2]


def test_one_answer_looks_at_a_bounded_part_and_says_where_to_go_on(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = publish(node, topic, "needle", partition=0)
    for _ in range(30):
        publish(node, topic, *["hay"] * 10, partition=0)
    monkeypatch.setattr(finder.limits, "SEARCH_SCANNED_MESSAGES_MAX", 100)
    answers = [find(node, topic, "needle")]
    assert ids(answers[0]) == []
    while answers[-1]["next"] is not None:
        answers.append(find(node, topic, "needle", cursor=answers[-1]["next"]))
    assert ids(answers[-1]) == [first["id"]]
    assert sum(answer["searched"] for answer in answers) == 301
    assert max(answer["searched"] for answer in answers) < 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"in": "key"}, "text"),
        ({"text": ""}, "text"),
        ({"text": "x" * (limits.SEARCH_TEXT_BYTES_MAX + 1)}, "text"),
        ({"text": "x", "in": "body"}, "in"),
        ({"text": "x", "ignore_case": "yes"}, "ignore_case"),
        ({"text": "x", "limit": 0}, "limit"),
        ({"text": "x", "limit": limits.SEARCH_MESSAGES_MAX + 1}, "limit"),
        ({"text": "x", "cursor": "nonsense"}, "cursor"),
        ({"text": "x", "from_time": "yesterday-ish"}, "from_time"),
    ],
)
def test_a_bad_search_is_refused_by_its_field(
    node: RunningNode, topic: str, query: dict[str, Any], field: str
) -> None:
    answer = node.request("GET", f"/v1/topics/{topic}/search?{urlencode(query)}")
    assert (answer.status, answer.json["field"]) == (400, field)


def test_the_longest_text_is_taken(node: RunningNode, topic: str) -> None:
    text = "x" * limits.SEARCH_TEXT_BYTES_MAX
    [published] = publish(node, topic, text)
    assert ids(find(node, topic, text)) == [published["id"]]


def test_without_a_text_all_messages_come_newest_first(node: RunningNode, topic: str) -> None:
    wanted = [publish(node, topic, f"x{n}", partition=n % 3)[0]["id"] for n in range(7)]
    publish(node, topic, *(f"y{n}" for n in range(5)), partition=1)
    path, found, query = f"/v1/topics/{topic}/search?limit=3", list[str](), ""
    while True:
        answer = node.call("GET", path + query)
        assert len(answer["messages"]) <= 3
        assert answer["searched"] <= 3 * 3, "a page reads no more than it needs of each partition"
        found += ids(answer)
        if answer["next"] is None:
            break
        query = f"&cursor={answer['next']}"
    assert found == [f"{topic}:1:{n}" for n in range(6, 1, -1)] + wanted[::-1]
    future = node.call("GET", f"{path}&from_time=2100-01-01")
    assert (future["messages"], future["next"]) == ([], None)
    for wrong in ("text=", "in=key", "ignore_case=true"):
        assert node.request("GET", f"{path}&{wrong}").status == 400


def test_the_client_lists_the_newest_messages_without_a_text(node: RunningNode, topic: str) -> None:
    wanted = [publish(node, topic, f"x{n}", partition=n % 3)[0]["id"] for n in range(4)]
    with Client(node.url) as client:
        page = client.search_messages(topic, limit=3)
        rest = client.search_messages(topic, cursor=page.next)
    assert [str(message.id) for message in (*page.messages, *rest.messages)] == wanted[::-1]
