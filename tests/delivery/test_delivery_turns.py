from __future__ import annotations

from support.delivery_pair import Pair
from support.delivery_twin import Message

from goq.model import Receipt
from goq.settings import Ordering, TopicSettings


def pair_with(**settings: object) -> Pair:
    return Pair(TopicSettings(**settings), {"g": Ordering.NONE})  # type: ignore[arg-type]


def take(pair: Pair, count: int) -> list[int]:
    """Receive and ack; return the offsets in the order in which they came."""
    known = len(pair.receipts)
    token = pair.receive("g", count, 1000)
    found = [o for r in pair.receipts[known:] for o in range(r.start, r.end)]
    if token is not None:
        pair.settle("ack", "g", [Receipt(0, token, o, o + 1) for o in found])
    return found


def of_tenants(pair: Pair, offsets: list[int]) -> str:
    return "".join(pair.twin.messages[o].tenant or "-" for o in offsets)


def test_a_tenant_that_comes_again_after_all_was_taken_is_seen() -> None:
    pair = pair_with()
    for start in (0, 3, 6):
        pair.publish([Message(1, "x")] * 3)
        assert take(pair, 100) == [start, start + 1, start + 2]
        assert take(pair, 100) == []


def test_one_tenant_with_much_delays_the_first_of_another_by_no_more_than_a_round() -> None:
    pair = pair_with()
    pair.publish([Message(1, "x")] * 50)
    assert of_tenants(pair, take(pair, 3)) == "xxx"
    pair.publish([Message(1, "y"), Message(1, "z")])
    assert {"y", "z"} <= set(of_tenants(pair, take(pair, 4)))


def test_tenants_share_a_lane_in_the_ratio_of_their_weights() -> None:
    pair = pair_with(tenant_weights=(("x", 3.0), ("y", 0.5)))
    pair.publish([Message(1, "x")] * 60 + [Message(1, "y")] * 60 + [Message(1, "z")] * 60)
    found = of_tenants(pair, [o for _ in range(9) for o in take(pair, 5)])
    assert (found.count("x"), found.count("y"), found.count("z")) == (30, 5, 10)


def test_lanes_share_in_the_ratio_of_their_weights_and_one_leaves_its_part_to_the_others() -> None:
    pair = pair_with(lane_weights=(4, 2, 1))
    pair.publish([Message(n % 3) for n in range(90)])
    lanes = [pair.twin.messages[o].lane for _ in range(7) for o in take(pair, 6)]
    assert [lanes.count(lane) for lane in range(3)] == [24, 12, 6]
    rest = [o for _ in range(20) for o in take(pair, 6)]
    assert len(rest) == 48


def test_a_message_that_starves_goes_before_all_others() -> None:
    pair = pair_with(starvation_ms=100)
    pair.publish([Message(2)])
    pair.move_clock(100)
    pair.publish([Message(0)] * 5)
    assert take(pair, 2) == [0, 1]


def test_a_strict_lane_gets_nothing_while_a_higher_one_has_something() -> None:
    pair = pair_with()
    pair.publish([Message(2), Message(1), Message(0), Message(0)])
    assert take(pair, 2) == [2, 3]
    pair.publish([Message(0)])
    assert take(pair, 2) == [4, 1]
    assert take(pair, 2) == [0]


def test_a_group_that_comes_when_the_queues_were_let_go_of_gets_all_there_is() -> None:
    pair = pair_with()
    pair.publish([Message(1)] * 4)
    pair.release()
    assert take(pair, 100) == [0, 1, 2, 3]
