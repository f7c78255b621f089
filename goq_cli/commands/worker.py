"""``goq worker``."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer

from goq.errors import GoqError, NotFound, UsageError
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.worker import WorkerApp

_IMPORTERS = (__name__, "importlib", "importlib._bootstrap", "importlib._bootstrap_external")


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
    parts = module_name.split(".")
    if not (all(map(str.isidentifier, parts)) and colon and attribute):
        raise UsageError(f"{name!r} is not MODULE:APP, as in tasks:app")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and parts[: missing.count(".") + 1] == missing.split("."):
            hint = f"; is it {parts[0]}:{attribute}?" if parts[1:] == ["py"] else ""
            raise NotFound(
                f"there is no module {module_name} in {os.getcwd()} or installed{hint}"
            ) from None
        raise GoqError(f"{module_name} cannot be imported\n{_own_traceback(error)}") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, WorkerApp):
        raise UsageError(f"{module_name} has no goq.WorkerApp named {attribute!r}")
    return app


def _own_traceback(error: Exception) -> str:
    """Return the traceback of a failed import, from the module's first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals["__name__"] in _IMPORTERS:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
