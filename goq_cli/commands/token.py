"""``goq token``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goq_cli.output.output import format_time, notice, print_answer, print_json, tell_done
from goq_cli.output.table import print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import CreatedToken

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_CLUSTER_FOLDER = "cluster"
_PRIVATE = 0o077
_Id = Annotated[str, typer.Argument(metavar="ID")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="RULE",
            help="publish, consume, read, manage, operate or admin, as consume:orders*/billing.",
        ),
    ],
    expires: Annotated[str | None, typer.Option(help="Valid for so long, as 90d.")] = None,
    cert: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Shown by a client certificate: its CN, or a URI in it."),
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=BOUND", help="As publish_bytes_per_s=10MB: docs/security.md."),
    ] = None,
    aws: Annotated[
        bool, typer.Option("--aws", help="With a key pair for AWS SDKs: docs/sqs.md.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of a standalone node that does not run.")
    ] = None,
) -> None:
    """Create a token, and print it this once."""
    quotas = {name: bound for name, _, bound in (each.partition("=") for each in quota or ())}
    if data_dir is not None:
        created = _create_offline(data_dir, name, allow, expires, cert, quotas, aws)
    else:
        with SESSION.client() as client:
            found = client.create_token(
                name, allow, expires=expires, cert=cert, quotas=quotas, aws=aws
            )
        created = dict(found.raw)
    _print_created(created["id"], created.get("token", ""), created)


@app.command("list")
def list_tokens() -> None:
    """List tokens, without their secrets."""
    with SESSION.client() as client:
        tokens = client.list_tokens()
    if SESSION.json:
        print_json({"tokens": [token.raw for token in tokens]})
        return
    rows = [
        (
            token.id,
            token.name,
            " ".join(token.allow),
            "revoked" if token.revoked else format_time(token.expires) or "never",
            token.last_used or "never",
        )
        for token in tokens
    ]
    print_table(("id", "name", "allow", "ends", "last used"), rows)


@app.command()
def rotate(
    token_id: _Id,
    grace: Annotated[
        str, typer.Option(help="The old secret stays valid for so long; 0 ends all.")
    ] = "0",
) -> None:
    """Give a token another secret, and print it this once."""
    with SESSION.client() as client:
        created: CreatedToken = client.rotate_token(token_id, grace=grace)
    _print_created(created.id, created.token, created.raw)


@app.command()
def revoke(token_id: _Id) -> None:
    """Make a token invalid, at once and for good."""
    with SESSION.client() as client:
        client.revoke_token(token_id)
    tell_done({"revoked": token_id}, f"revoked {token_id}")


@app.command()
def whoami() -> None:
    """Show whose token this is, and what it allows."""
    with SESSION.client() as client:
        me = client.whoami()
    lines = [f"{me.name} ({me.id})", *me.allow]
    if me.expires is not None:
        lines.append(f"expires {format_time(me.expires)}")
    print_answer(me.raw, "\n".join(lines))


def _print_created(token_id: str, text: str, answer: Any) -> None:
    if text:
        notice(f"token {token_id}: keep it now, it is not shown again")
    secret = answer.get("aws_secret_access_key")
    if secret:
        key_id = answer["aws_access_key_id"]
        pair = f"AWS_ACCESS_KEY_ID={key_id}\nAWS_SECRET_ACCESS_KEY={secret}"
        print_answer(answer, f"GOQ_TOKEN={text}\n{pair}")
    else:
        print_answer(answer, text or token_id)


def _create_offline(
    data_dir: Path,
    name: str,
    allow: list[str],
    expires: str | None,
    cert: str | None,
    quotas: dict[str, str],
    aws: bool,
) -> dict[str, Any]:
    """Create a token in the data folder of a standalone node that does not run."""
    from goq.access.aws_key import AWS_MARK
    from goq.access.token_manager import lifetime_ms, new_token
    from goq.access.token_record import check_change, with_token
    from goq.clock import SystemClock
    from goq.errors import UsageError
    from goq.storage.data_dir_lock import DataDirLock
    from goq.storage.disk import RealDisk
    from goq.storage.node_db import NodeDb

    if (data_dir / _CLUSTER_FOLDER).exists():
        raise UsageError(
            f"the tokens of a cluster are not in {data_dir}; ask a running node, with the token in"
            " its admin.token: goq --token-file DIR/admin.token token create …"
        )
    now_ms = SystemClock().wall_ms()
    created = new_token(name, allow, now_ms, lifetime_ms(expires), cert, quotas, aws=aws)
    record = created.record
    os.umask(_PRIVATE)
    RealDisk().make_dir(data_dir)
    lock = DataDirLock(data_dir)
    try:
        db = NodeDb(data_dir)
        try:
            tokens = db.tokens()
            check_change(tokens, record)
            db.put_token(record, with_token(tokens, record)[1])
        finally:
            db.close()
    finally:
        lock.release()
    answer = {
        "id": record.id,
        "name": record.name,
        "allow": [rule for rule in record.rules if rule != AWS_MARK],
        "token": created.text,
    }
    if created.aws_secret is not None:
        answer |= {
            "aws_access_key_id": record.id,
            "aws_secret_access_key": created.aws_secret,
        }
    return answer
