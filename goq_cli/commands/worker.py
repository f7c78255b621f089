"""``goq worker``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from goq.errors import NotFound, UsageError
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.worker import WorkerApp


def command(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="As tasks:app.")],
) -> None:
    """Run the workers of a Python program until SIGTERM or Ctrl-C.

    MODULE is found from the current folder; APP is its goq.WorkerApp. The server of this call, if
    one is given, comes before the app's. Running functions end before the command does.
    """
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    found = _load(app)
    servers, token = SESSION.servers_and_token()
    is_given = SESSION.servers or SESSION.context or "GOQ_SERVER" in os.environ
    options = {"token": token} if token is not None else {}
    found.run(servers if is_given else None, **options)


def _load(name: str) -> WorkerApp:
    from goq.worker import WorkerApp

    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(f"{name!r} is not MODULE:APP, as in tasks:app")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise NotFound(f"there is no module {module_name} in {os.getcwd()} or installed") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, WorkerApp):
        raise UsageError(f"{module_name} has no goq.WorkerApp named {attribute!r}")
    return app
