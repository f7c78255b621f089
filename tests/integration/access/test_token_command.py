"""``goq token``: with a node and without one, and where commands find their token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli.command import Run
from tests.support.node.running_node import running_node


def test_the_first_token_is_made_without_a_node(goq: Run, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    made = goq("token", "create", "admin", "--allow", "admin:*", "--data-dir", str(data_dir))
    token = made.stdout.decode().strip()
    with running_node(data_dir, security={"auth": "tokens"}) as node:
        assert not (data_dir / "admin.token").exists()
        command = ("token", "list", "--json")
        assert b"asks for a token" in goq(*command, GOQ_SERVER=node.url, code=4).stderr
        file = tmp_path / "token"
        file.write_text(token + "\n")
        ways = ({"GOQ_TOKEN": token}, {"GOQ_TOKEN_FILE": str(file)})
        for way in ways:
            found = json.loads(goq(*command, GOQ_SERVER=node.url, **way).stdout)
            assert [each["name"] for each in found["tokens"]] == ["admin"]
        goq("--token-file", str(file), *command, GOQ_SERVER=node.url)
        refused = goq(
            "token", "create", "x", "--allow", "read:*", "--data-dir", str(data_dir), code=6
        )
        assert b"in use" in refused.stderr
    missing = goq("--token-file", str(tmp_path / "none"), *command, code=2)
    assert b"cannot read the token" in missing.stderr


def test_a_token_is_created_rotated_and_revoked(goq: Run) -> None:
    with running_node(security={"auth": "tokens"}) as node:
        admin = {"GOQ_SERVER": node.url, "GOQ_TOKEN_FILE": str(node.data_dir / "admin.token")}
        rules = ("--allow", "publish:orders*", "--allow", "consume:orders/b*")
        first = goq("token", "create", "shop", *rules, "--expires", "1d", **admin).stdout.decode()
        token_id = first.split("_")[1]
        mine = {"GOQ_SERVER": node.url, "GOQ_TOKEN": first.strip()}
        shown = goq("token", "whoami", **mine).stdout.decode()
        assert shown.startswith(f"shop ({token_id})\npublish:orders*\nconsume:orders/b*\nexpires ")
        assert first.split("_", 2)[2].strip() not in goq("token", "list", **admin).stdout.decode()
        goq("produce", "orders", stdin=b"hello\n", **mine)
        consumed = goq("consume", "orders", "--group", "billing", "--max", "1", **mine)
        assert consumed.stdout == b"hello\n"
        assert (
            b"consume:orders/other"
            in goq("consume", "orders", "--group", "other", "--max", "1", code=4, **mine).stderr
        )
        assert b"no topic" in goq("produce", "secret", stdin=b"x\n", code=3, **mine).stderr
        second = goq("token", "rotate", token_id, **admin).stdout.decode().strip()
        goq("token", "whoami", code=4, **mine)
        mine["GOQ_TOKEN"] = second
        goq("token", "whoami", **mine)
        revoked = goq("token", "revoke", token_id, "--json", **admin).stdout
        assert json.loads(revoked) == {"revoked": token_id}
        assert b"was revoked" in goq("token", "whoami", code=4, **mine).stderr


@pytest.mark.parametrize("rule", ["publish", "delete:x", "admin:orders", "publish:a*b"])
def test_a_rule_that_is_wrong_makes_no_token(goq: Run, rule: str, tmp_path: Path) -> None:
    refused = goq("token", "create", "x", "--allow", rule, "--data-dir", str(tmp_path), code=7)
    assert b"is not a rule" in refused.stderr


def test_a_token_with_a_key_pair_is_printed_as_an_environment(goq: Run, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    create = ("token", "create", "shop", "--allow", "admin:*", "--aws")
    printed = goq(*create, "--data-dir", str(data_dir)).stdout.decode()
    offline = dict(line.split("=", 1) for line in printed.splitlines())
    with running_node(data_dir, security={"auth": "tokens"}) as node:
        way = {"GOQ_SERVER": node.url, "GOQ_TOKEN": offline["GOQ_TOKEN"]}
        made = dict(line.split("=", 1) for line in goq(*create, **way).stdout.decode().splitlines())
        listed = goq("token", "list", **way).stdout.decode()
    for pair in (offline, made):
        assert list(pair) == ["GOQ_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
        assert pair["AWS_ACCESS_KEY_ID"] == pair["GOQ_TOKEN"].split("_")[1]
        assert pair["AWS_SECRET_ACCESS_KEY"] not in listed


@pytest.mark.parametrize("expires", ["0", "0s", "20000d"])
def test_a_token_that_is_made_without_a_node_expires_within_the_same_bounds(
    goq: Run, tmp_path: Path, expires: str
) -> None:
    create = ("token", "create", "x", "--allow", "admin:*", "--data-dir", str(tmp_path / "data"))
    refused = goq(*create, "--expires", expires, code=7)
    assert b"expires" in refused.stderr
    assert refused.stdout == b""
