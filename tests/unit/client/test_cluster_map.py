"""What a client knows of a cluster, and whom it asks because of it."""

from __future__ import annotations

import msgspec

from goq.client.cluster_map import ClusterMap, TopicPartition, _ClusterAnswer

A, B, C = (f"http://{name}:8080" for name in "abc")
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_map(
    *leaders: str | None, version: int = 5, nodes: dict[str, str] | None = None
) -> _ClusterAnswer:
    urls = {"a": A, "b": B, "c": C} if nodes is None else nodes
    document = {
        "version": version,
        "node": "a",
        "nodes": [{"id": name, "url": url, "status": "up"} for name, url in urls.items()],
        "topics": [
            {
                "name": "orders",
                "partitions": [
                    {"partition": number, "leader": leader} for number, leader in enumerate(leaders)
                ],
            }
        ],
    }
    return msgspec.convert(document, _ClusterAnswer)


def places(*leaders: str | None, servers: tuple[str, ...] = (A,)) -> tuple[ClusterMap, Clock]:
    clock = Clock()
    found = ClusterMap(servers, clock)
    found.hear("5")
    assert found.wants("orders")
    found.take("orders", a_map(*leaders))
    return found, clock


def test_a_node_that_says_nothing_of_a_cluster_is_never_asked_about_one() -> None:
    known = ClusterMap([A], Clock())
    known.hear(None)
    known.hear("not a version")
    known.hear("9" * 5000)
    known.failed(A, answered=False)
    assert not known.is_cluster
    assert not known.wants("orders")
    assert known.url_for(ORDERS_0) == A


def test_a_partition_is_asked_of_its_leader_and_everything_else_of_any_node() -> None:
    known, _ = places("b", "c")
    assert known.url_for(ORDERS_0) == B
    assert known.url_for(ORDERS_1) == C
    assert known.url_for(None) == A
    assert known.url_for(TopicPartition("others", 0)) == A
    assert known.leaders("orders") == [B, C]


def test_a_map_is_asked_for_again_only_once_it_is_older_than_what_a_node_spoke_of() -> None:
    known, clock = places("b", "c")
    clock.now_s += 60
    assert not known.wants("orders")
    known.hear("4")
    assert not known.wants("orders")
    known.hear("6")
    assert known.wants("orders")


def test_a_map_is_asked_for_at_most_once_a_second_whatever_the_versions_do() -> None:
    known, clock = places("b", "c")
    known.hear("6")
    assert not known.wants("orders")
    clock.now_s += 1
    assert known.wants("orders")
    assert not known.wants("orders")


def test_a_leader_that_does_not_answer_is_passed_over_for_a_while_and_the_map_asked_for() -> None:
    known, clock = places("b", "c")
    known.failed(B, answered=False)
    assert known.url_for(ORDERS_0) == A
    assert known.url_for(ORDERS_1) == C
    assert known.wants("orders")
    clock.now_s += 3
    assert known.url_for(ORDERS_0) == B


def test_a_leader_that_answers_that_it_is_busy_is_asked_again() -> None:
    known, _ = places("b", "c")
    known.failed(B, answered=True)
    assert known.url_for(ORDERS_0) == B


def test_the_only_server_given_may_die_when_others_were_learned() -> None:
    known, _ = places("b", "c")
    known.failed(A, answered=False)
    assert known.url_for(None) == B
    known.failed(B, answered=False)
    assert known.url_for(None) == C


def test_when_no_node_answers_they_are_asked_in_turn() -> None:
    known = ClusterMap([A, B], Clock())
    asked = []
    for _ in range(4):
        asked.append(known.current)
        known.failed(known.current, answered=False)
    assert asked == [A, B, A, B]


def test_who_a_refusal_names_as_leader_is_asked_next() -> None:
    known, _ = places("b", "c")
    known.moved(ORDERS_0, C)
    assert known.url_for(ORDERS_0) == C
    known.moved(ORDERS_0, None)
    assert known.url_for(ORDERS_0) == A


def test_a_partition_without_a_leader_is_asked_of_any_node() -> None:
    known, _ = places(None, "c")
    assert known.url_for(ORDERS_0) == A
    assert known.leaders("orders") == [C]


def test_nodes_that_speak_without_tls_are_not_learned_from_one_that_spoke_with_it() -> None:
    known = ClusterMap(["https://a:8080"], Clock())
    known.hear("5")
    known.take("orders", a_map("b", "c", nodes={"b": B, "c": "https://c:8080"}))
    assert known.leaders("orders") == ["https://c:8080"]
    assert known.url_for(ORDERS_0) == "https://a:8080"


def test_leaders_are_asked_for_messages_in_turn_without_those_that_do_not_answer() -> None:
    known, _ = places("a", "b", "c")
    first, second = known.leaders_in_turn("orders"), known.leaders_in_turn("orders")
    assert sorted(first) == sorted(second) == [A, B, C]
    assert first[1:] + first[:1] == second
    known.failed(B, answered=False)
    assert B not in known.leaders_in_turn("orders")


def test_a_topic_that_is_gone_has_no_leaders_any_more() -> None:
    known, _ = places("b", "c")
    gone = _ClusterAnswer(6, [], [])
    known.take("orders", gone)
    assert known.leaders("orders") == []
    assert known.url_for(ORDERS_0) == A
