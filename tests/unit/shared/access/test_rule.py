"""Rules: their text, and the requests that they allow."""

from __future__ import annotations

import pytest

from goq.access.rule import ANYONE, NOBODY, Principal, Verb, parse_rule
from goq.errors import InvalidInput


def principal(*rules: str) -> Principal:
    return Principal("p", "p", [parse_rule(rule) for rule in rules])


@pytest.mark.parametrize(
    "text",
    ["publish:orders", "publish:*", "consume:orders*/b*", "read:orders.dlq", "admin:*", "operate:*",
     "read:__audit", "manage:a_b-c.d"],
)  # fmt: skip
def test_a_rule_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_rule(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "publish", "publish:", "delete:orders", "publish:or*ders", "publish:**", "publish:a b",
     "publish:orders/g", "admin:orders", "operate:orders", "admin:*/g", "consume:orders/",
     "consume:orders/a/b", "PUBLISH:orders", "publish:\u00e9", "publish:orders\n", "read:.x"],
)  # fmt: skip
def test_another_text_is_no_rule(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_rule(text)


def test_a_rule_for_all_groups_is_written_without_them() -> None:
    assert str(parse_rule("consume:orders/*")) == "consume:orders"


def test_a_pattern_is_a_name_or_the_beginning_of_names() -> None:
    someone = principal("publish:orders", "publish:eu-*")
    assert [someone.allows(Verb.PUBLISH, name) for name in ("orders", "eu-1", "eu-")] == [True] * 3
    assert not any(
        someone.allows(Verb.PUBLISH, name) for name in ("orders2", "order", "eu", "Orders", "us-1")
    )
    assert not any(someone.allows(verb, "orders") for verb in Verb if verb is not Verb.PUBLISH)


def test_a_rule_with_a_group_allows_nothing_that_concerns_no_group() -> None:
    someone = principal("read:orders/billing*")
    assert someone.allows(Verb.READ, "orders", "billing-1")
    assert not someone.allows(Verb.READ, "orders", "other")
    assert not someone.allows(Verb.READ, "orders")
    assert someone.sees("orders")
    assert someone.sees_group("orders", "billing")
    assert not someone.sees_group("orders", "other")


def test_a_star_matches_no_name_that_belongs_to_goq() -> None:
    assert not principal("read:*", "manage:*").allows(Verb.READ, "__audit")
    assert not principal("read:*").sees("__audit")
    assert principal("read:__audit").allows(Verb.READ, "__audit")
    assert principal("read:__*").allows(Verb.READ, "__audit")


def test_who_may_consume_by_one_group_may_consume_from_the_topic() -> None:
    sender = Principal("id", "name", [parse_rule("consume:orders*/billing"), parse_rule("read:x")])
    assert sender.may_consume("orders.eu")
    assert not sender.may_consume("x")
    assert not sender.may_consume("__audit")
    assert Principal("id", "name", [parse_rule("admin:*")]).may_consume("x")


def test_admin_allows_everything_and_operate_no_topic() -> None:
    assert all(principal("admin:*").allows(verb, "__audit", "g") for verb in Verb)
    operator = principal("operate:*")
    assert operator.may(Verb.OPERATE)
    assert not operator.may(Verb.ADMIN)
    assert not operator.sees("orders")
    assert not any(operator.allows(verb, "orders") for verb in (Verb.READ, Verb.MANAGE))
    assert ANYONE.is_admin
    assert not any(NOBODY.may(verb) or NOBODY.allows(verb, "orders") for verb in Verb)
