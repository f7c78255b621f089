"""Records of the audit trail, and the bound of recorded refusals."""

from __future__ import annotations

from goq.access.audit_record import (
    AuditRecord,
    AuditResult,
    RefusalBound,
    decode_record,
    encode_record,
)
from goq.access.token import draw_secret, draw_token_id, format_token


def test_a_record_survives_encoding_without_the_secrets_of_tokens() -> None:
    token_id, secret = draw_token_id(), draw_secret()
    text = format_token(token_id, secret)
    record = AuditRecord(
        time="2025-01-15T10:30:00.000000Z",
        result=AuditResult.REFUSED,
        node="n1",
        request="r",
        principal="-",
        path=f"/v1/tokens/{text}",
        body={"name": text, "allow": [f"x{text}y"]},
    )
    data = encode_record(record)
    assert secret not in data.decode()
    assert decode_record(data).path == f"/v1/tokens/goq_{token_id}_…"
    assert decode_record(data).result is AuditResult.REFUSED


def test_the_first_refusal_of_a_period_is_admitted_and_the_others_are_counted() -> None:
    bound = RefusalBound(senders_max=2, period_s=60)
    assert bound.next_end_s is None
    assert [bound.admit("a", now) for now in (0, 1, 59)] == [True, False, False]
    assert bound.admit("b", 30)
    assert bound.next_end_s == 60
    assert bound.take_ended(59) == []
    assert bound.take_ended(60) == [("a", 2)]
    assert bound.next_end_s == 90
    assert bound.take_ended(90) == []
    assert bound.admit("a", 91)


def test_senders_beyond_the_bound_count_as_one() -> None:
    bound = RefusalBound(senders_max=2, period_s=60)
    assert [bound.admit(sender, 0) for sender in "abcde"] == [True, True, True, False, False]
    assert bound.take_ended(60) == [("(others)", 2)]
