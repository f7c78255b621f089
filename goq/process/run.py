"""The run of a node's process: start, signals, stop.

SIGTERM and SIGINT stop the node. SIGHUP loads the settings again and applies those that can change
while it runs. SIGUSR1 writes to the log what is under way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from goq import __version__
from goq.api.metrics.request_spans import open_spans
from goq.config.exposure import is_loopback
from goq.config.node import Config
from goq.errors import GoqError, StorageFailed, StorageFull, describe_os_error
from goq.event_loop import new_event_loop
from goq.node import NodeServer
from goq.process import log
from goq.process.dump import dump
from goq.process.garbage import collect_garbage
from goq.process.heap import set_up_heap, trim_heap
from goq.process.settings import changed_settings
from goq.storage.disk import is_full

_log = logging.getLogger("goq.node")
_PRIVATE = 0o077
"""The file mode creation mask: other users read no message, by no file of the data folder."""
_RELOADED = ("logging.level", "security.hosts", "sqs.hosts")


def run(load: Callable[[], Config], on_ready: Callable[[Config, str], None]) -> None:
    """Run a node until SIGTERM or Ctrl-C, or until it fails: then raise ``GoqError``.

    ``load`` returns its settings; it is called again on SIGHUP. ``on_ready`` gets the settings and
    the URL.
    """
    config = load()
    log.set_up(config.logging)
    _raise_open_files()
    os.umask(_PRIVATE)
    set_up_heap()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(config, load, on_ready))


async def _run(
    config: Config, load: Callable[[], Config], on_ready: Callable[[Config, str], None]
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    spans = open_spans(os.environ, config.broker.node_id)
    node = NodeServer(config, spans=spans)

    def stop(number: int) -> None:
        if not stopping.is_set():
            _log.info("stopping, on %s", signal.Signals(number).name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, _reload, node, load)
    loop.add_signal_handler(signal.SIGUSR1, lambda: _log.warning("%s", dump(node)))
    failures: list[GoqError] = []

    def fail(error: GoqError) -> None:
        failures.append(error)
        stopping.set()

    node.on_failure = fail
    try:
        await node.start()
    except OSError as error:
        what = f"the node cannot start: {describe_os_error(error, config.broker.data_dir)}"
        raise (StorageFull if is_full(error) else StorageFailed)(what) from error
    collecting = asyncio.create_task(collect_garbage(node))
    trimming = asyncio.create_task(trim_heap())
    try:
        _tell_start(config, node.url)
        on_ready(config, node.url)
        await stopping.wait()
    finally:
        collecting.cancel()
        trimming.cancel()
        await node.stop()
        if spans is not None:
            spans.close()
        _log.info("stopped")
    if failures:
        raise failures[0]


def _tell_start(config: Config, url: str) -> None:
    changed = changed_settings(Config(), config)
    _log.info(
        "goq %s started as %s on %s, data in %s; settings: %s",
        __version__,
        config.broker.node_id,
        url,
        config.broker.data_dir.resolve(),
        " ".join(f"{name}={value}" for name, value in changed.items()) or "the defaults",
    )
    if not config.asks_for_tokens and not is_loopback(config.broker.host):
        _log.warning(
            "this node asks for no tokens: who reaches %s can read and delete everything",
            config.broker.listen,
        )


def _reload(node: NodeServer, load: Callable[[], Config]) -> None:
    """Apply the settings that can change while a node runs; name the others."""
    try:
        config = load()
        changed = changed_settings(node.config, config)
        files = node.reload(config)
    except GoqError as error:
        _log.error("the settings are kept: %s", error.detail)
        return
    applied = {name: value for name, value in changed.items() if name in _RELOADED}
    log.set_level(config.logging.level)
    for name, value in changed.items():
        if name not in applied:
            _log.warning("%s=%s counts from the next start on", name, value)
    told = (f"{name}={value}" for name, value in (applied | files).items())
    text = " ".join(told) or "nothing changed"
    _log.warning("loaded the settings again: %s", text)


def _raise_open_files() -> None:
    """Raise the limit of open files to the maximum."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
