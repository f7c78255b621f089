"""An authority that signs certificates for members, by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from goq.cluster.raft.transport.link import Credentials
from goq.cluster.raft.transport.tls import tls_credentials

SECRET = b"a secret of the cluster"
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with openssl"
)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        openssl(
            folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=cluster",
        )  # fmt: skip

    def credentials(self, id_: str, trusts: Authority | None = None) -> Credentials:
        """Return what a member with this id in its certificate has."""
        certificate, key = self.sign(id_)
        return tls_credentials(SECRET, (trusts or self).certificate, certificate, key)

    def verifies(self, certificate: Path) -> bool:
        """Return whether a certificate of this authority is valid now."""
        command = ["openssl", "verify", "-CAfile", str(self.certificate), str(certificate)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def sign(self, id_: str, names: str | None = None, days: int = 2) -> tuple[Path, Path]:
        """Return a certificate for an id, and its key.

        ``names`` are its alternative names as openssl writes them, by default the id.
        """
        openssl(
            self.folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{id_}.key", "-out", f"{id_}.csr", "-subj", f"/CN={id_}",
        )  # fmt: skip
        (self.folder / "san").write_text(f"subjectAltName={names or f'DNS:{id_}'}\n")
        openssl(
            self.folder, "x509", "-req", "-in", f"{id_}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", str(days), "-extfile", "san", "-out", f"{id_}.pem",
        )  # fmt: skip
        return self.folder / f"{id_}.pem", self.folder / f"{id_}.key"
