"""``goq context``."""

from __future__ import annotations

from typing import Annotated

import typer

from goq_cli.output.output import print_json, tell_done
from goq_cli.output.table import print_table
from goq_cli.session import SESSION, url_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command("list")
def list_contexts() -> None:
    """List contexts; the current one is marked."""
    from goq_cli.contexts import load_contexts

    contexts = load_contexts()
    found = sorted(contexts.contexts.items())
    if SESSION.json:
        names = {name: context.servers for name, context in found}
        print_json({"current": contexts.current, "contexts": names})
        return
    rows = [
        ("*" if name == contexts.current else "", name, ",".join(context.servers))
        for name, context in found
    ]
    print_table(("current", "name", "servers"), rows)


@app.command("set")
def set_context(name: _Name) -> None:
    """Store --server (and the token of --token-file) as context NAME, and use it."""
    from goq.client.protocol.request_builder import server_of
    from goq.errors import InvalidInput, UsageError
    from goq_cli.contexts import Context, contexts_path, load_contexts, save_contexts

    if not SESSION.servers:
        raise UsageError("say which server: goq context set NAME --server URL")
    if not name.strip():
        raise UsageError("a context needs a name")
    for server in SESSION.servers:
        try:
            server_of(url_of(server))
        except InvalidInput as error:
            raise UsageError(error.detail) from None
    contexts = load_contexts()
    contexts.contexts[name] = Context(SESSION.servers, SESSION.own_token())
    contexts.current = name
    save_contexts(contexts)
    tell_done({"current": name}, f"using {name}; remembered in {contexts_path()}")


@app.command()
def use(name: _Name) -> None:
    """Switch to a context."""
    from goq_cli.contexts import load_contexts, save_contexts

    contexts = load_contexts()
    contexts.current = _known(name, list(contexts.contexts))
    save_contexts(contexts)
    tell_done({"current": name}, f"using {name}")


@app.command()
def delete(name: _Name) -> None:
    """Delete a context."""
    from goq_cli.contexts import load_contexts, save_contexts

    contexts = load_contexts()
    del contexts.contexts[_known(name, list(contexts.contexts))]
    if contexts.current == name:
        contexts.current = None
    save_contexts(contexts)
    tell_done({"deleted": name}, f"deleted {name}")


def _known(name: str, names: list[str]) -> str:
    from goq.errors import NotFound

    if name not in names:
        raise NotFound(f"there is no context {name!r}; there are: {', '.join(names) or 'none'}")
    return name
