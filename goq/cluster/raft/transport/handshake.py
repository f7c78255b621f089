"""Handshake of two members, and the seals of their later frames: bytes in, bytes out.

A frame is a size u32, little-endian, and as many bytes. D dials, A accepts:

    D → A   b"goqraft2" · nonce 32 · id of D · id of A · disk of D    each: size u16 · UTF-8
    A → D   nonce 32 · proof 32 · disk of A
    D → A   proof 32, or empty: A's proof is wrong

A proof is HMAC-SHA256, keyed with the cluster's secret, of the prover's role and the SHA-256 of the
first two frames without proofs. It can be neither replayed nor reflected. Afterwards each direction
has its own key, derived in the same way, and a 32-byte seal follows each frame: HMAC-SHA256 of its
number in that direction, its size and its bytes. A frame that is lost, repeated, reordered or
changed ends the connection.

The first sealed frame in each direction is a verdict, first D's, then A's: empty to accept the
other side, else the reason for the rejection. A member is rejected if it comes with another disk
than it is registered with: without that disk it has lost its votes and its log.

Nothing is encrypted. TLS around the connection adds that.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections import deque
from collections.abc import Sequence
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
    """Splits received bytes into frames; with a key it checks the seal of each.

    The pieces of a frame are joined once, when all are there.
    """

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._received_bytes = 0
        """The size of all pieces."""
        self._frame_bytes: int | None = None
        """The size of the next frame, None until it is received."""
        self._size_max = HELLO_BYTES_MAX
        self._key: hmac.HMAC | None = None
        self._number = 0

    def use_key(self, key: bytes) -> None:
        """Expect sealed frames with this key from now on, up to the size of a message."""
        self._key = _keyed(key)
        self._size_max = limits.RAFT_MESSAGE_BYTES_MAX

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._pieces.append(memoryview(data))
        self._received_bytes += len(data)

    def next(self) -> bytes | None:
        """Return the next complete frame, or None.

        Raises ``TooLarge`` for a size over the limit, and ``NotAllowed`` for a wrong seal.
        """
        size = self._frame_bytes
        if size is None:
            if self._received_bytes < _SIZE.size:
                return None
            (size,) = _SIZE.unpack(self._take(_SIZE.size))
            if size > self._size_max:
                raise TooLarge(f"a frame of {size} bytes is over the limit of {self._size_max}")
            self._frame_bytes = size
        seal_bytes = 0 if self._key is None else SEAL_BYTES
        if self._received_bytes < size + seal_bytes:
            return None
        frame = self._take(size)
        if self._key is not None:
            seal = _seal(self._key, self._number, [frame])
            if not hmac.compare_digest(self._take(SEAL_BYTES), seal):
                raise NotAllowed("the seal of a frame is wrong")
            self._number += 1
        self._frame_bytes = None
        return frame

    def _take(self, size_bytes: int) -> bytes:
        """Remove the next bytes, which are received, and return them."""
        self._received_bytes -= size_bytes
        taken: list[memoryview] = []
        while size_bytes:
            piece = self._pieces[0]
            if len(piece) > size_bytes:
                self._pieces[0] = piece[size_bytes:]
            else:
                self._pieces.popleft()
            taken.append(piece[:size_bytes])
            size_bytes -= len(taken[-1])
        return b"".join(taken)


class FrameSealer:
    """Encodes outgoing sealed frames."""

    def __init__(self, key: bytes) -> None:
        self._key = _keyed(key)
        self._number = 0

    def frame(self, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """Return the buffers of the sealed frame that consists of ``parts``."""
        number, self._number = self._number, self._number + 1
        return [_SIZE.pack(sum(map(len, parts))), *parts, _seal(self._key, number, parts)]


def plain_frame(data: bytes) -> bytes:
    """Return a frame of the handshake."""
    return _SIZE.pack(len(data)) + data


class SessionKeys:
    """The proofs of a handshake, and the keys of the frames after it."""

    def __init__(self, secret: bytes, hello: bytes, nonce: bytes, disk: bytes) -> None:
        self._secret = secret
        self._transcript = hashlib.sha256(hello + nonce + disk).digest()

    def acceptor_proof(self) -> bytes:
        """Return the proof that only an acceptor with the secret can send."""
        return self._derive(b"acceptor proves")

    def dialer_proof(self) -> bytes:
        """Return the proof that only a dialer with the secret can send."""
        return self._derive(b"dialer proves")

    def from_acceptor(self) -> bytes:
        """Return the key of the acceptor's frames."""
        return self._derive(b"acceptor sends")

    def from_dialer(self) -> bytes:
        """Return the key of the dialer's frames."""
        return self._derive(b"dialer sends")

    def _derive(self, purpose: bytes) -> bytes:
        return hmac.digest(self._secret, purpose + self._transcript, "sha256")


def check_proof(proof: bytes, expected: bytes) -> None:
    """Raise ``NotAllowed`` unless a proof is the expected one."""
    if not hmac.compare_digest(proof, expected):
        raise NotAllowed("the peer does not have the secret of this cluster")


class Hello(NamedTuple):
    """The dialer's first frame: its id, the id that it expects, and its disk."""

    dialer: str
    acceptor: str
    disk: str


def pack_hello(nonce: bytes, dialer: str, acceptor: str, disk: str) -> bytes:
    """Encode the dialer's first frame."""
    texts = (text.encode() for text in (dialer, acceptor, disk))
    return MAGIC + nonce + b"".join(_ID_SIZE.pack(len(text)) + text for text in texts)


def unpack_hello(hello: bytes) -> Hello:
    """Decode the dialer's first frame; raise ``NotAllowed`` for any other bytes."""
    if not hello.startswith(MAGIC):
        raise NotAllowed("the peer does not speak this version of goq's Raft protocol")
    position, texts = len(MAGIC) + NONCE_BYTES, []
    try:
        for _ in Hello._fields:
            (size,) = _ID_SIZE.unpack_from(hello, position)
            position += _ID_SIZE.size + size
            texts.append(hello[position - size : position].decode())
    except (struct.error, UnicodeDecodeError):
        raise NotAllowed("the peer's first frame is truncated or malformed") from None
    if position != len(hello):
        raise NotAllowed("the peer's first frame is truncated or malformed")
    return Hello(*texts)


def pack_challenge(nonce: bytes, proof: bytes, disk: str) -> bytes:
    """Encode the acceptor's first frame."""
    return nonce + proof + disk.encode()


def unpack_challenge(challenge: bytes) -> tuple[bytes, bytes, bytes]:
    """Return nonce, proof and disk, all of them unchecked."""
    proof_end = NONCE_BYTES + PROOF_BYTES
    return (
        challenge[:NONCE_BYTES],
        challenge[NONCE_BYTES:proof_end],
        challenge[proof_end:],
    )


def _keyed(key: bytes) -> hmac.HMAC:
    """Return the beginning of each seal with a key: to be copied."""
    return hmac.new(key, digestmod="sha256")


def _seal(key: hmac.HMAC, number: int, parts: Sequence[bytes | memoryview]) -> bytes:
    seal = key.copy()
    seal.update(_NUMBERED.pack(number, sum(map(len, parts))))
    for part in parts:
        seal.update(part)
    return seal.digest()
