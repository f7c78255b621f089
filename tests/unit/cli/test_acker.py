"""What a consumer is told of receipts that were not settled."""

from __future__ import annotations

import pytest

from goq.client.messages import FailedReceipt, Settled
from goq.errors import LeaseLost, TimedOut, TopicNotFound
from goq_cli.settlement.acker import complaint

CASES = {
    (TimedOut, 1): "it is not known whether 1 receipt was acknowledged; messages that were not come"
    " again",
    (TimedOut, 2): "it is not known whether 2 receipts were acknowledged; messages that were not"
    " come again",
    (TopicNotFound, 1): "1 receipt was not acknowledged: the topic was deleted meanwhile",
    (TopicNotFound, 3): "3 receipts were not acknowledged: the topic was deleted meanwhile",
    (LeaseLost, 1): "a lease had ended before its message was acknowledged; it comes again (see"
    " --visibility)",
    (LeaseLost, 2): "2 leases had ended before their messages were acknowledged; they come again"
    " (see --visibility)",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]} {case[0].__name__}")
def test_receipts_that_were_not_settled_are_counted_and_explained(
    case: tuple[type[LeaseLost | TimedOut | TopicNotFound], int],
) -> None:
    error, count = case
    failed = [FailedReceipt("r", error.code)] * count
    assert complaint(Settled(5, failed)) == f"goq: {CASES[case]}\n"


def test_nothing_is_said_if_all_were_settled_and_each_kind_on_a_line_else() -> None:
    assert complaint(Settled(5, [])) == ""
    failed = [FailedReceipt("r", error.code) for error in (LeaseLost, TimedOut, TopicNotFound)]
    assert len(complaint(Settled(0, failed)).splitlines()) == 3
