"""Tokens: creation, rotation, revocation, expiry, and the principals of valid ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from goq import limits
from goq.access.admin_token import FILE_NAME, read_admin_token, write_admin_token
from goq.access.rule import Verb
from goq.access.token_manager import TokenManager
from goq.access.token_record import DAY_MS, TokenRecord, check_change, with_token
from goq.access.token_table import TokenTable
from goq.errors import Conflict, InvalidInput, NotAuthenticated, NotFound, UsageError

T = TypeVar("T")


class Tokens:
    """A store in memory, with a clock."""

    def __init__(self) -> None:
        self.tokens: dict[str, TokenRecord] = {}
        self.now_ms = 1_700_000_000_000
        self.manager = TokenManager(self, lambda: self.now_ms)
        self.table = TokenTable(lambda: self.tokens, lambda: self.now_ms)

    async def put_token(self, record: TokenRecord) -> None:
        check_change(self.tokens, record)
        self.tokens, _ = with_token(self.tokens, record)

    def create(self, *rules: str, expires_ms: int = 0) -> str:
        return run(self.manager.create("team", rules or ("publish:*",), expires_ms)).text

    def finds(self, text: str | None, *, is_local: bool = True) -> bool:
        try:
            self.table.find(text, is_local=is_local)
        except NotAuthenticated:
            return False
        return True


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


def test_a_token_is_its_prefix_its_id_and_256_random_bits(tokens: Tokens) -> None:
    text = tokens.create()
    assert re.fullmatch(r"goq_[a-z2-9]{8}_[A-Za-z0-9_-]{43}", text)
    assert text.split("_")[1] in tokens.tokens
    assert text.split("_", 2)[2] not in repr(tokens.tokens)


def test_only_the_whole_token_is_valid(tokens: Tokens) -> None:
    text, other = tokens.create(), tokens.create()
    assert tokens.finds(text)
    prefix, token_id, _ = text.split("_", 2)
    swapped = f"{prefix}_{token_id}_{other.split('_', 2)[2]}"
    digest = f"{prefix}_{token_id}_{tokens.tokens[token_id].digest}"
    wrong = (
        *(None, "", "goq", "goq__", text[:-1], text + "x", text.upper(), swapped, digest),
        *(f"{prefix}_{token_id}_", token_id, f"x{text}", "admin@node-1", "goq_admin@n1_x"),
    )
    assert not any(tokens.finds(each) for each in wrong)


@pytest.mark.parametrize("text", ["goq_half", "", "x"])
def test_what_is_no_token_is_told_as_unknown_and_not_as_missing(tokens: Tokens, text: str) -> None:
    with pytest.raises(NotAuthenticated, match="does not know the token"):
        tokens.table.find(text, is_local=True)
    with pytest.raises(NotAuthenticated, match="asks for a token"):
        tokens.table.find(None, is_local=True)


def test_a_token_expires_at_its_time(tokens: Tokens) -> None:
    text = tokens.create(expires_ms=1000)
    tokens.now_ms += 999
    principal = tokens.table.find(text, is_local=False)
    tokens.now_ms += 1
    assert not tokens.finds(text)
    assert not tokens.table.is_valid(principal)


def test_a_revoked_token_is_invalid_at_once_and_stays_so(tokens: Tokens) -> None:
    text = tokens.create()
    principal = tokens.table.find(text, is_local=False)
    token_id = principal.id
    run(tokens.manager.revoke(token_id))
    run(tokens.manager.revoke(token_id))
    assert not tokens.finds(text)
    assert not tokens.table.is_valid(principal)
    with pytest.raises(Conflict):
        run(tokens.manager.rotate(token_id, 0))
    with pytest.raises(NotFound):
        run(tokens.manager.revoke("nobody"))


def test_a_rotated_token_has_two_secrets_for_the_grace_and_one_afterwards(tokens: Tokens) -> None:
    first = tokens.create()
    token_id = first.split("_")[1]
    second = run(tokens.manager.rotate(token_id, 1000)).text
    assert tokens.finds(first)
    assert tokens.finds(second)
    tokens.now_ms += 1000
    assert not tokens.finds(first)
    third = run(tokens.manager.rotate(token_id, 0)).text
    assert [tokens.finds(text) for text in (first, second, third)] == [False, False, True]


def test_a_second_rotation_does_not_shorten_the_grace_of_the_first(tokens: Tokens) -> None:
    first = tokens.create()
    token_id = first.split("_")[1]
    second = run(tokens.manager.rotate(token_id, 1000)).text
    tokens.now_ms += 999
    with pytest.raises(Conflict, match=r"valid until 2023-11-14T22:13:21.*grace 0"):
        run(tokens.manager.rotate(token_id, 1000))
    assert [tokens.finds(text) for text in (first, second)] == [True, True]
    tokens.now_ms += 1
    third = run(tokens.manager.rotate(token_id, 1000)).text
    assert [tokens.finds(text) for text in (first, second, third)] == [False, True, True]
    fourth = run(tokens.manager.rotate(token_id, 0)).text
    assert [tokens.finds(text) for text in (second, third, fourth)] == [False, False, True]


def test_an_expired_token_is_not_rotated(tokens: Tokens) -> None:
    token_id = tokens.create(expires_ms=1000).split("_")[1]
    tokens.now_ms += 999
    last = run(tokens.manager.rotate(token_id, 0)).text
    assert tokens.finds(last)
    tokens.now_ms += 1
    with pytest.raises(Conflict, match="expired"):
        run(tokens.manager.rotate(token_id, 0))


def test_what_began_with_a_secret_ends_with_it(tokens: Tokens) -> None:
    first = tokens.create()
    old = tokens.table.find(first, is_local=False)
    token_id = old.id
    named = tokens.table.named(token_id)
    second = run(tokens.manager.rotate(token_id, 1000)).text
    new = tokens.table.find(second, is_local=False)
    assert tokens.table.is_valid(old)
    assert tokens.table.find(first, is_local=False) is old
    tokens.now_ms += 1000
    valid = [tokens.table.is_valid(each) for each in (old, new, named)]
    assert valid == [False, True, True]
    run(tokens.manager.rotate(token_id, 0))
    assert not tokens.table.is_valid(new)


def test_the_use_of_a_token_is_noted_by_day_and_changes_no_principal(tokens: Tokens) -> None:
    text = tokens.create()
    principal = tokens.table.find(text, is_local=False)
    run(tokens.manager.note_use(principal.id))
    run(tokens.manager.note_use(principal.id))
    record = tokens.tokens[principal.id]
    assert (record.last_used_day, record.version) == (tokens.now_ms // DAY_MS, 2)
    assert tokens.table.is_valid(principal)
    assert tokens.table.find(text, is_local=False) is principal


def test_other_rules_make_another_principal(tokens: Tokens) -> None:
    text = tokens.create("publish:a")
    before = tokens.table.find(text, is_local=False)
    record = tokens.tokens[before.id]
    run(tokens.put_token(replace(record, rules=("read:a", "later:*"), version=2)))
    assert not tokens.table.is_valid(before)
    now = tokens.table.find(text, is_local=False)
    assert now.allows(Verb.READ, "a")
    assert not now.allows(Verb.PUBLISH, "a")


def test_of_two_changes_of_one_version_one_is_refused(tokens: Tokens) -> None:
    token_id = tokens.create().split("_")[1]
    record = tokens.tokens[token_id]
    run(tokens.put_token(replace(record, revoked_ms=1, version=2)))
    with pytest.raises(Conflict):
        run(tokens.put_token(replace(record, last_used_day=1, version=2)))


def test_tokens_that_ended_long_ago_go_with_the_next_new_one(tokens: Tokens) -> None:
    ended, expired, kept = tokens.create(), tokens.create(expires_ms=1), tokens.create()
    run(tokens.manager.revoke(ended.split("_")[1]))
    tokens.now_ms += limits.TOKEN_ENDED_KEPT_MS
    tokens.create()
    assert len(tokens.tokens) == 4 - 1  # the expired one ended a millisecond later
    tokens.now_ms += 1
    tokens.create()
    assert expired.split("_")[1] not in tokens.tokens
    assert tokens.finds(kept)


@pytest.mark.parametrize("rules", [(), ("publish:*",) * (limits.TOKEN_RULES_MAX + 1), ("x:*",)])
def test_a_token_has_a_few_rules(tokens: Tokens, rules: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        run(tokens.manager.create("team", rules))
    assert not tokens.tokens


def test_the_token_of_the_data_folder_counts_on_its_machine_only(
    tokens: Tokens, tmp_path: Path
) -> None:
    assert read_admin_token(tmp_path) is None
    text = write_admin_token(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert read_admin_token(tmp_path) == text
    assert tokens.table.set_admin_token("n1", text)
    assert tokens.table.find(text, is_local=True).is_admin
    assert not tokens.finds(text, is_local=False)
    assert not tokens.finds(text[:-1])
    principal = tokens.table.find(text, is_local=True)
    assert not tokens.table.set_admin_token("n1", text), "it is the same"
    assert tokens.table.is_valid(principal)
    assert tokens.table.set_admin_token("n1", None)
    assert not tokens.table.set_admin_token("n1", None)
    assert not tokens.finds(text)
    assert not tokens.table.is_valid(principal)
    assert tokens.table.is_valid(tokens.table.named("admin@n2"))


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    write_admin_token(tmp_path)
    (tmp_path / FILE_NAME).chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        read_admin_token(tmp_path)
