"""A real nginx before a node."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.eventually import eventually

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
_TEMP = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextmanager
def nginx(node: tuple[str, int], *directives: str, location: str = "/") -> Iterator[str]:
    """Run nginx with its defaults and ``directives``; yield the URL of the proxied node."""
    assert NGINX is not None
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="goq-nginx-") as folder:
        path = f"{location}" if location != "/" else ""
        temp = "".join(f"{name}_temp_path {folder}/{name};\n" for name in _TEMP)
        config = Path(folder) / "nginx.conf"
        config.write_text(
            f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr warn;\n"
            f"events {{}}\nhttp {{ access_log off;\n{temp}"
            f"server {{ listen 127.0.0.1:{port}; location {location} {{\n"
            f"proxy_pass http://{node[0]}:{node[1]}{'/' if path else ''};\n"
            f"{' '.join(directives)}\n}} }} }}\n"
        )
        command = [NGINX, "-c", str(config), "-p", folder]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                eventually(lambda: _answers(port))
                yield f"http://127.0.0.1:{port}{path.rstrip('/')}"
            finally:
                process.terminate()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
