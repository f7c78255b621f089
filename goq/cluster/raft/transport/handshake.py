"""How two members make sure of each other, and seal what they say: bytes in, bytes out.

Everything is a frame: a size u32, little-endian, and as many bytes. D dials, A accepts:

    D → A   b"goqraft2" · nonce 32 · id of D · id of A · disk of D    each: size u16 · UTF-8
    A → D   nonce 32 · proof 32 · disk of A
    D → A   proof 32

A proof is HMAC-SHA256, keyed with the secret of the cluster, of the prover's role and the SHA-256
of the first two frames without proofs: it can be neither replayed nor reflected. After that each
direction has a key of its own, made in the same way, and 32 bytes follow each frame: HMAC-SHA256
of its number in that direction, its size and its bytes. A frame left out, repeated, moved or
changed on the way ends the connection.

The first sealed frame of each is its verdict, first D's, then A's: empty if the other is let in,
else why it is not. That is so when it comes with another disk than it is known with: then it has
forgotten its votes, and what it said that it had on its disk.

Nothing is encrypted: who needs that has TLS around it.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import NamedTuple

from goq import limits
from goq.errors import NotAllowed, TooLarge

MAGIC = b"goqraft2"
NONCE_BYTES = PROOF_BYTES = SEAL_BYTES = 32
HELLO_BYTES_MAX = 1024
_SIZE = struct.Struct("<I")
_ID_SIZE = struct.Struct("<H")
_NUMBERED = struct.Struct("<QI")


class FrameReader:
    """Cuts incoming bytes into frames; with a key it checks the seal of each."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._size_max = HELLO_BYTES_MAX
        self._key: bytes | None = None
        self._number = 0

    def sealed(self, key: bytes) -> None:
        """From here on frames are sealed with this key, and may be large."""
        self._key = key
        self._size_max = limits.RAFT_MESSAGE_BYTES_MAX

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._bytes += data

    def next(self) -> bytes | None:
        """Return the next whole frame; ``TooLarge`` or ``NotAllowed`` where there is none."""
        if len(self._bytes) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._bytes)
        if size > self._size_max:
            raise TooLarge(f"a frame of {size} bytes is announced; at most {self._size_max} fit")
        end = _SIZE.size + size
        seal_end = end if self._key is None else end + SEAL_BYTES
        if len(self._bytes) < seal_end:
            return None
        frame = bytes(self._bytes[_SIZE.size : end])
        seal = bytes(self._bytes[end:seal_end])
        if self._key is not None:
            if not hmac.compare_digest(seal, _seal(self._key, self._number, frame)):
                raise NotAllowed("a frame does not bear the seal of its sender")
            self._number += 1
        del self._bytes[:seal_end]
        return frame


class FrameSealer:
    """Makes outgoing frames."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def frame(self, data: bytes) -> list[bytes]:
        """Return the buffers of a sealed frame."""
        number, self._number = self._number, self._number + 1
        return [_SIZE.pack(len(data)), data, _seal(self._key, number, data)]


def plain_frame(data: bytes) -> bytes:
    """Return a frame of the handshake."""
    return _SIZE.pack(len(data)) + data


class SessionKeys:
    """What follows from a handshake: the proofs that are due, and the keys afterwards."""

    def __init__(self, secret: bytes, hello: bytes, nonce: bytes, disk: bytes) -> None:
        self._secret = secret
        self._transcript = hashlib.sha256(hello + nonce + disk).digest()

    def acceptor_proof(self) -> bytes:
        """Return what only an acceptor with the secret can send."""
        return self._derived(b"acceptor proves")

    def dialer_proof(self) -> bytes:
        """Return what only a dialer with the secret can send."""
        return self._derived(b"dialer proves")

    def from_acceptor(self) -> bytes:
        """Return the key of the acceptor's frames."""
        return self._derived(b"acceptor sends")

    def from_dialer(self) -> bytes:
        """Return the key of the dialer's frames."""
        return self._derived(b"dialer sends")

    def _derived(self, purpose: bytes) -> bytes:
        return hmac.digest(self._secret, purpose + self._transcript, "sha256")


def check_proof(proof: bytes, expected: bytes) -> None:
    """Raise ``NotAllowed`` unless a proof is the expected one."""
    if not hmac.compare_digest(proof, expected):
        raise NotAllowed("the other side does not have the secret of this cluster")


class Hello(NamedTuple):
    """What a dialer says: who it is, whom it looks for, and which disk it comes with."""

    dialer: str
    acceptor: str
    disk: str


def pack_hello(nonce: bytes, dialer: str, acceptor: str, disk: str) -> bytes:
    """Return the dialer's first frame."""
    texts = (text.encode() for text in (dialer, acceptor, disk))
    return MAGIC + nonce + b"".join(_ID_SIZE.pack(len(text)) + text for text in texts)


def unpack_hello(hello: bytes) -> Hello:
    """Return what the dialer says; ``NotAllowed`` if it speaks otherwise."""
    if not hello.startswith(MAGIC):
        raise NotAllowed("the other side does not speak goq's Raft protocol, or not this version")
    position, texts = len(MAGIC) + NONCE_BYTES, []
    try:
        for _ in Hello._fields:
            (size,) = _ID_SIZE.unpack_from(hello, position)
            position += _ID_SIZE.size + size
            texts.append(hello[position - size : position].decode())
    except (struct.error, UnicodeDecodeError):
        raise NotAllowed("the other side's greeting is cut off or garbled") from None
    if position != len(hello):
        raise NotAllowed("the other side's greeting is cut off or garbled")
    return Hello(*texts)


def pack_challenge(nonce: bytes, proof: bytes, disk: str) -> bytes:
    """Return the acceptor's first frame."""
    return nonce + proof + disk.encode()


def unpack_challenge(challenge: bytes) -> tuple[bytes, bytes, bytes]:
    """Return nonce, proof and disk, of which nothing has been checked."""
    proof_end = NONCE_BYTES + PROOF_BYTES
    return (
        challenge[:NONCE_BYTES],
        challenge[NONCE_BYTES:proof_end],
        challenge[proof_end:],
    )


def _seal(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.digest(key, _NUMBERED.pack(number, len(data)) + data, "sha256")
