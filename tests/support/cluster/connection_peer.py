"""The process at the other end of a connection within this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_ANY_STATE = _NO_COOKIE = 0xFFFFFFFF
_DIAG_INODE_AT = 84


def inode_of_peer(accepted: socket.socket) -> int | None:
    """Return the inode of the other end of a connection within this machine, None if it is gone.

    ``/proc/net/tcp`` lists all sockets: with 12,000 in ``TIME_WAIT`` each look holds the loop of
    all links for 30 ms of CPU, and links that are not cut break too. So the kernel is asked first.
    """
    try:
        peer, own = accepted.getpeername(), accepted.getsockname()
    except OSError:
        return None
    with contextlib.suppress(OSError):
        return _inode_by_diag(peer, own)
    return _inode_in_list(peer)


def _inode_by_diag(socket_of: tuple[str, int], connected_to: tuple[str, int]) -> int | None:
    """Return the inode of a connected socket; raise ``OSError`` if ``sock_diag`` has none."""
    (host, port), (other_host, other_port) = socket_of, connected_to
    hosts = map(socket.inet_aton, (host, other_host))
    request = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY_STATE)
    request += struct.pack("!HH16s16s", port, other_port, *hosts)
    request += struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(header + request)
        answer = kernel.recv(4096)
    if struct.unpack_from("=IH", answer)[1] != _SOCK_DIAG_BY_FAMILY:
        raise OSError(-struct.unpack_from("=i", answer, 16)[0], "sock_diag")
    return struct.unpack_from("=I", answer, _DIAG_INODE_AT)[0] or None


def _inode_in_list(socket_of: tuple[str, int]) -> int | None:
    host, port = socket_of
    address = f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == address and fields[9] != "0":
            return int(fields[9])
    return None


def is_held_by(pid: int, inode: int) -> bool:
    """Whether a process holds the socket with an inode."""
    wanted = f"socket:[{inode}]"
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_leads_to(entry.path) == wanted for entry in entries)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return False  # it has ended


def _leads_to(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""
