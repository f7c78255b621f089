"""``goq doctor``."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from goq.errors import UsageError
from goq_cli.output.disk_errors import disk_errors_told
from goq_cli.output.output import format_time, print_answer
from goq_cli.output.progress import show_progress
from goq_cli.session import SESSION

_DATA_DIR = Path("goq-data")
_RENEW = "  put another in its place; SIGHUP, or a minute, and it is used"
_DAMAGE_ADVICE = (
    "The rest is served. For the offsets, run on the node: goq doctor --verify --data-dir DIR"
)


def command(
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every byte of data in a folder.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --verify: which folder. Default: goq-data."),
    ] = None,
) -> None:
    """Check the health of a node, or verify a data folder; exit 1 if anything is wrong.

    A node of a cluster is not well either while it cannot serve, as without a controller.

    A folder can be verified while a node uses it: nothing is written, and data that is not durable
    yet is skipped. So are indexes, columns and keys: a node checks them when it reads them, and
    makes damaged ones again from the messages.
    """
    if data_dir is not None and not verify:
        raise UsageError("--data-dir goes with --verify; without, goq doctor asks the node")
    if not (_folder_is_sound(data_dir or _DATA_DIR) if verify else _node_is_well()):
        raise typer.Exit(1)


def _node_is_well() -> bool:
    with SESSION.client() as client:
        health, version = client.get_health(), client.get_version()
        readiness = client.get_readiness()
    status = readiness.status if health.status == "ok" else health.status
    lines = [f"node {version.node}, goq {version.version}: {status}"]
    lines += [f"waits for {cause}" for cause in readiness.waits_for]
    lines += [f"the disk is {health.disk}"] if health.disk else []
    lines += health.limits_reached
    if health.certificate_expires is not None:
        lines += [f"the certificate ends: {format_time(health.certificate_expires)}", _RENEW]
    if health.opening:
        lines.append(f"{health.opening:,} partitions are still being opened and checked: ask again")
    told = {problem.what for problem in health.problems}
    lines += [f"offline: {name}" for name in health.offline if name not in told]
    for name in health.damaged:
        lines += [f"damaged: {name}: stored bytes failed their check", f"  {_DAMAGE_ADVICE}"]
    for problem in health.problems:
        lines += [f"{problem.state}: {problem.what}: {problem.reason}", f"  {problem.advice}"]
    answer = {**version.raw, **readiness.raw, **health.raw, "status": status}
    print_answer(answer, "\n".join(lines))
    return status == "ok"


def _folder_is_sound(data_dir: Path) -> bool:
    from goq.errors import NotFound
    from goq.storage.disk import RealDisk
    from goq.storage.log.segment import SUFFIX
    from goq.storage.verification import verify_data_dir
    from goq.units import round_size_bytes

    if not data_dir.is_dir():
        raise NotFound(f"there is no folder {data_dir}; say which with --data-dir")
    began = time.monotonic()
    progress = show_progress(unit="bytes", total=lambda: _logs_bytes(data_dir))
    with disk_errors_told(data_dir), progress as advance:

        class CountingDisk(RealDisk):
            """A disk that counts what is read of segments."""

            def read(
                self, path: Path, position: int, size_bytes: int, *, wait: bool = True
            ) -> memoryview:
                data = super().read(path, position, size_bytes, wait=wait)
                if path.suffix == SUFFIX:
                    advance(len(data))
                return data

        report = verify_data_dir(CountingDisk(), data_dir)
    seconds = time.monotonic() - began
    damage = [str(damage) for log in report.logs for damage in log.report.damage]
    messages = sum(log.report.messages for log in report.logs if log.log == "messages")
    problems = [*report.problems, *damage]
    lines = [*problems]
    lines.append(
        f"{len(report.logs)} logs, {messages:,} messages, {round_size_bytes(report.bytes)} checked"
        f" in {seconds:.1f} s: {'sound' if report.is_sound else f'{len(problems)} problems'}"
    )
    answer = {
        "sound": report.is_sound,
        "logs": len(report.logs),
        "messages": messages,
        "bytes": report.bytes,
        "problems": problems,
    }
    print_answer(answer, "\n".join(lines))
    return report.is_sound


def _logs_bytes(data_dir: Path) -> int:
    """Return the size of all segments."""
    total = 0
    for path in data_dir.rglob("*.log"):
        with suppress(OSError):  # retention deletes meanwhile
            total += path.stat().st_size
    return total
