from __future__ import annotations

import pytest

from goq.client.results.live import WaitingMessages
from goq_cli.output.top.keyboard import BACKSPACE, DOWN, ENTER, ESCAPE, UP, KeyDecoder
from goq_cli.output.top.rates import Moment, RateMeter
from goq_cli.output.top.view import TopView, shares
from tests.unit.cli.top.states import group, node, state, topic


def busy(count: int = 3) -> Moment:
    """Return a moment of topics whose lag rises and whose publish rate falls by their number."""
    meter = RateMeter()
    for at_s in (0, 1):
        moment = meter.moment(
            state(
                at_s,
                *(
                    topic(
                        f"topic-{number}",
                        published_messages=at_s * (count - number),
                        groups=(group(f"group-{number}", lag=number),),
                    )
                    for number in range(count)
                ),
            )
        )
    return moment


def texts(view: TopView, moment: Moment, columns: int = 120, rows: int = 30) -> list[str]:
    return [line.text for line in view.lines(moment, (), None, columns, rows)]


def first_words(view: TopView, moment: Moment) -> list[str]:
    """Return the topics in their order."""
    words = [line.split(" ")[0] for line in texts(view, moment)]
    start = words.index("topic") + 1
    return words[start : words.index("", start)]


def chosen(view: TopView, moment: Moment) -> str:
    [line] = [line for line in view.lines(moment, (), None, 120, 30) if line.kind == "chosen"]
    return line.text.split()[0]


@pytest.mark.parametrize("columns", [1, 20, 80, 200])
@pytest.mark.parametrize("rows", [1, 2, 5, 10, 24, 60])
def test_a_screen_has_its_size_however_much_there_is(columns: int, rows: int) -> None:
    moments = (busy(0), busy(3), busy(100), RateMeter().moment(state(0, topic("x" * 200))))
    for moment in moments:
        for key in ("", ENTER, "/"):
            view = TopView()
            texts(view, moment)
            view.press(key)
            found = texts(view, moment, columns, rows)
            assert len(found) == rows
            assert all(len(line) <= columns for line in found)


def test_the_sort_key_changes_the_order() -> None:
    view, moment = TopView(), busy()
    assert first_words(view, moment) == ["topic-0", "topic-1", "topic-2"]
    for _ in range(3):
        view.press("s")
    assert "sort: lag" in texts(view, moment)[-1]
    assert first_words(view, moment) == ["topic-2", "topic-1", "topic-0"]
    for _ in range(3):
        view.press("s")
    assert "sort: publish" in texts(view, moment)[-1]


def test_a_filter_is_typed_kept_and_taken_away() -> None:
    view, moment = TopView(), busy()
    for key in ("/", "q", BACKSPACE, "C", "-", "2"):
        view.press(key)
    assert not view.is_over
    assert texts(view, moment)[-1].startswith("filter: C-2_")
    view.press(ENTER)
    assert first_words(view, moment) == ["topic-2"]
    assert not any("group-1" in line for line in texts(view, moment))
    view.press(ESCAPE)
    assert len(first_words(view, moment)) == 3


def test_what_is_chosen_stays_so_while_the_order_changes_and_ends_at_the_ends() -> None:
    view, moment = TopView(), busy()
    assert chosen(view, moment) == "topic-0"
    view.press(UP)
    assert chosen(view, moment) == "topic-0"
    view.press(DOWN)
    view.press("s")
    assert chosen(view, moment) == "topic-1"
    for _ in range(5):
        view.press(DOWN)
    assert chosen(view, moment) == "topic-2"
    assert chosen(view, busy(1)) == "topic-0"


def test_keys_that_come_before_a_new_screen_are_for_what_it_would_show() -> None:
    view, moment = TopView(), busy()
    texts(view, moment)
    for key in ("/", *"topic-2", ENTER, ENTER):
        view.press(key)
    assert view.opened == "topic-2"


def test_a_chosen_topic_far_below_is_on_the_screen() -> None:
    view, moment = TopView(), busy(100)
    texts(view, moment)
    for _ in range(60):
        view.press(DOWN)
    assert chosen(view, moment) == "topic-60"


def test_an_open_topic_shows_its_groups_lanes_and_tenants_until_escape() -> None:
    view, moment = TopView(), busy()
    texts(view, moment)
    view.press(ENTER)
    assert view.opened == "topic-0"
    lanes = (WaitingMessages(name="urgent\x1b", waiting=4),)
    waiting = RateMeter().moment(state(0, topic("topic-0", groups=(group("g", lanes=lanes),))))
    found = [line.text for line in view.lines(moment, waiting.groups, None, 120, 30)]
    assert any(line.startswith("group-0") for line in found)
    assert any(line.split() == ["g", "lane", "urgent\\x1b", "4", "0"] for line in found)
    assert not any("topic-1" in line for line in found)
    assert any("topic topic-0 is not there" in line for line in texts(view, busy(0)))
    view.press(ESCAPE)
    assert view.opened is None


def test_pause_quit_and_trouble_are_told() -> None:
    view, moment = TopView(), busy()
    view.press("p")
    head, notice, *_ = view.lines(moment, (), "away\x1b[2J", 80, 24)
    assert head.text.startswith("PAUSED 10:30:01Z")
    assert (notice.text, notice.kind) == ("NOT CURRENT: away\\x1b[2J", "notice")
    view.press("p")
    assert not view.is_paused
    view.press("q")
    assert view.is_over


def test_nodes_have_a_quarter_and_topics_half_of_the_rest() -> None:
    assert shares(20, 1, 100, 100) == (1, 9, 10)
    assert shares(20, 100, 100, 100) == (5, 7, 8)
    assert shares(20, 1, 2, 100) == (1, 2, 17)
    assert shares(20, 100, 2, 3) == (15, 2, 3)
    assert shares(-3, 1, 1, 1) == (0, 0, 0)


def test_more_rows_than_fit_are_counted() -> None:
    moment = RateMeter().moment(state(0, *map(topic, map(str, range(50))), nodes=(node(),)))
    assert any(line.endswith("of 50)") for line in texts(TopView(), moment))


def test_bytes_of_a_terminal_are_keys() -> None:
    decoder = KeyDecoder()
    keys = decoder.keys(b"s/\x1b[A\x1bOB\r\n\x7f\x08\x1b[15~\x00\x07\xff\xc3")
    assert [*keys] == ["s", "/", UP, DOWN, ENTER, ENTER, BACKSPACE, BACKSPACE]
    assert [*decoder.keys(b"\xa9\x1b")] == ["é", ESCAPE]
