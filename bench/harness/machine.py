"""What figures mean nothing without: the machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from goq import __version__


def facts(folder: Path) -> dict[str, str]:
    """Return what decides speed here; ``folder`` is on the disk that is written to."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "goq": __version__,
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "filesystem": _filesystem(folder),
        "redis": _redis_version(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _filesystem(folder: Path) -> str:
    best = ("", "unknown")
    where = str(folder.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        if where.startswith(mount) and len(mount) > len(best[0]):
            best = (mount, f"{kind} on {device}")
    return best[1]


def _redis_version() -> str:
    if shutil.which("redis-server") is None:
        return "not installed"
    output = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout
    return output.partition("v=")[2].split()[0]
