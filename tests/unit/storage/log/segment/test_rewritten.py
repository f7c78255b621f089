"""How far a log has been written anew since somebody looked."""

from __future__ import annotations

from pathlib import Path
from random import Random

from goq.storage.log.rewrite_history import RewriteHistory
from goq.storage.log.segment import Segment


def segment(end_offset: int, generation: int = 0) -> Segment:
    made = Segment(Path("/data"), end_offset - 10, generation)
    made.end_offset = end_offset
    return made


def test_what_was_rewritten_before_the_log_was_opened_counts_for_who_knows_nothing() -> None:
    known = RewriteHistory([segment(10), segment(20, 2), segment(30)])
    assert known.end_offset_since(-1) == 20
    assert known.end_offset_since(known.count) == 0


def test_what_was_rewritten_since_is_as_if_each_were_remembered() -> None:
    for seed in range(50):
        random = Random(seed)
        known, noted = RewriteHistory([segment(50, 1)]), [50]
        for _ in range(20):
            end = random.randint(1, 9) * 10
            known.record(segment(end))
            noted.append(end)
            for number in range(-1, known.count + 1):
                assert known.end_offset_since(number) == max(noted[number + 1 :], default=0)
