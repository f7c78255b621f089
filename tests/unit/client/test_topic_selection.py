import pytest

from goq.client.protocol.topic_selection import TopicSelection
from goq.errors import InvalidInput

TOPICS = ["a", "a.dlq", "ab", "b", "orders.new", "orders.new.dlq", "Orders.new"]


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        ("a", ["a"]),
        ("a*", ["a", "ab"]),
        ("*", ["a", "ab", "b", "orders.new", "Orders.new"]),
        ("*.dlq", ["a.dlq", "orders.new.dlq"]),
        ("?", ["a", "b"]),
        ("[!a]", ["b"]),
        ("orders.*", ["orders.new"]),
        (["a.dlq", "a?"], ["a.dlq", "ab"]),
        (["b", "b", "*b"], ["ab", "b"]),
        ("c*", []),
    ],
)
def test_patterns_choose_as_a_shell_does_but_for_dead_letters(
    written: str | list[str], chosen: list[str]
) -> None:
    assert TopicSelection(written).chosen(TOPICS) == chosen


def test_only_a_single_name_needs_no_list_of_topics() -> None:
    assert TopicSelection("a").is_one_name
    assert TopicSelection(["a", "a"]).is_one_name
    assert not TopicSelection("a*").is_one_name
    assert not TopicSelection(["a", "b"]).is_one_name
    with pytest.raises(InvalidInput, match="at least one topic"):
        TopicSelection([])


def test_what_is_missing_is_named() -> None:
    both = TopicSelection(["a", "b", "c*"])
    assert "there is no topic a b" in str(both.missing([]))
    assert "there is no topic b" in str(both.missing(["a"]))
    assert both.missing(["a", "b"]) is None
    assert "no topic matches c*" in str(TopicSelection("c*").missing([]))
    assert TopicSelection("c*").missing(["cc"]) is None
