"""Foreign bytes: ``check_frame`` says no in two ways, or every accessor works."""

from __future__ import annotations

import struct
from random import Random

import pytest
import zstandard

from goq import limits
from goq.config.topic import TopicSettings
from goq.errors import InvalidFrame, InvalidInput, TooLarge, UnsupportedFormat
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.hashes import key_hash
from goq.frame.header import ATTRIBUTES, Attribute
from goq.frame.slice import drop_duplicates, slice_frame
from goq.frame.validation import check_delivery, check_frame
from goq.frame.view import FrameView
from tests.support.frame.cases import GOLDEN, Batch, event_frame, resealed
from tests.support.storage.keys import with_key_hashes
from tests.support.storage.memory import tracing

EVERY = GOLDEN["every-column"].encode()


def check(frame: bytes) -> FrameView:
    view = FrameView.parse(frame)
    check_frame(view)
    return view


def use_everything(view: FrameView) -> None:
    """Call every accessor, for all of the frame and for parts of it."""
    count, base = view.header.message_count, view.header.base_offset
    for start, end in {(0, count), (0, 0), (count // 2, count), (0, 1)}:
        view.columns(start, end)
        assert len(list(view.messages(start, end))) == end - start
    for attribute in ATTRIBUTES.values():
        view.column(attribute)
    assert all(isinstance(name, str) for name in view.tenant_names)
    for start, end in ((0, 1), (count - 1, count), (0, count)):
        part = FrameView.parse(slice_frame(view, base + start, base + end))
        check_frame(part)
        assert part.columns(0, end - start) == view.columns(start, end)


def check_is_refused_or_sound(frame: bytes) -> bool:
    try:
        view = check(frame)
    except (InvalidFrame, TooLarge):
        return False
    use_everything(view)
    return True


INTERESTING = [-(2**31), -65, -8, -1, 0, 1, 7, 8, 63, 64, 65_535, 2**16, 2**24, 2**31 - 1]


def mutated(frame: bytes, random: Random) -> bytes:
    data = bytearray(frame)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(8, len(data)) if random.random() < 0.3 else random.randrange(
            min(64, len(data) - 1), len(data)
        )  # fmt: skip
        kind = random.randrange(7)
        if kind == 0:
            data[at] = random.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << random.randrange(8)
        elif kind in (2, 3):
            at = at // 4 * 4
            data[at : at + 4] = struct.pack("<i", random.choice(INTERESTING))
        elif kind == 4:
            del data[at // 8 * 8 : at // 8 * 8 + 8 * random.randint(1, 4)]
        elif kind == 5:
            data[at // 8 * 8 : at // 8 * 8] = random.randbytes(8 * random.randint(1, 4))
        else:
            data[32:36] = (
                int.from_bytes(data[32:36], "little") ^ 1 << random.randrange(15)
            ).to_bytes(4, "little")
        if len(data) < 72:
            break
    if random.random() < 0.9:
        data += bytes(-len(data) % 8)
    return resealed(data)


def mutate(first: int, last: int) -> None:
    frames = [batch.encode() for batch in GOLDEN.values()]
    frames += [Batch(Columns([b"x" * n for n in range(50)], tenants=["a", "b"] * 25)).encode()]
    accepted = 0
    for seed in range(first, last):
        random = Random(seed)
        frame = mutated(random.choice(frames), random)
        try:
            accepted += check_is_refused_or_sound(frame)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {frame.hex()}") from error
    assert 0.02 < accepted / (last - first) < 0.9, "both sides are reached"


def test_a_changed_frame_with_right_crcs_is_refused_or_wholly_sound() -> None:
    mutate(0, 15_000)


@pytest.mark.long
def test_many_changed_frames_with_right_crcs_are_refused_or_wholly_sound() -> None:
    mutate(15_000, 500_000)


@pytest.mark.parametrize(
    ("hashes", "sound"),
    [
        ([key_hash(b"a"), 0, 0, key_hash(b"b")], True),
        ([key_hash(b"a") ^ 1, 0, 0, key_hash(b"b")], False),
        ([key_hash(b"a"), 0, 0, key_hash(b"b") ^ 1 << 63], False),
        ([key_hash(b"b"), 0, 0, key_hash(b"a")], False),
        ([key_hash(b"a"), 1, 0, key_hash(b"b")], False),
        ([key_hash(b"a"), 0, 1, key_hash(b"b")], False),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_key_has_its_own_hash_and_no_key_has_0(
    hashes: list[int], sound: bool, compressed: bool
) -> None:
    columns = Columns([b"x" * 5000] * 4, keys=[b"a", None, b"", b"b"])
    frame = with_key_hashes(encode_frame(columns, compress=compressed), hashes)
    assert check_is_refused_or_sound(frame) == sound


@pytest.mark.parametrize("name", GOLDEN)
def test_a_frame_cut_anywhere_is_refused(name: str) -> None:
    frame = GOLDEN[name].encode()
    for size in range(len(frame)):
        with pytest.raises(InvalidFrame):
            check(frame[:size])
        if size > 64:
            assert not check_is_refused_or_sound(resealed(frame[:size]))


def test_any_changed_byte_is_refused() -> None:
    for position in range(len(EVERY)):
        changed = bytearray(EVERY)
        changed[position] ^= 0x41
        with pytest.raises(InvalidFrame):
            check(bytes(changed))


def test_any_bytes_are_refused() -> None:
    random = Random(1)
    for size in (0, 1, 63, 64, 65, 72, 200):
        for _ in range(50):
            with pytest.raises(InvalidFrame):
                check(random.randbytes(size))
            with pytest.raises(InvalidFrame):
                check(b"goq\x01" + random.randbytes(size))


def with_field(frame: bytes, at: int, code: str, value: int) -> bytes:
    data = bytearray(frame)
    struct.pack_into(f"<{code}", data, at, value)
    return resealed(data)


HEADER_FIELDS = {
    "no messages": (28, "I", 0),
    "one message less": (28, "I", 3),
    "one message more": (28, "I", 5),
    "too many messages": (28, "I", limits.FRAME_MESSAGES_MAX + 1),
    "a negative offset": (8, "q", -1),
    "an unknown attribute": (32, "I", 0x7F0F | 1 << 15),
    "the highest attribute": (32, "I", 0x7F0F | 1 << 31),
    "no keys where there are hashes": (32, "I", 0x7F0E),
    "no hashes where there are keys": (32, "I", 0x770F),
    "events": (32, "I", 0x7F2F),
    "a sequence past the end of numbers": (48, "Q", 2**64 - 1),
    "another version": (0, "I", int.from_bytes(b"goq\x00", "little")),
}


@pytest.mark.parametrize(("at", "code", "value"), HEADER_FIELDS.values(), ids=HEADER_FIELDS)
def test_a_header_that_says_so_is_refused(at: int, code: str, value: int) -> None:
    with pytest.raises(InvalidFrame):
        check(with_field(EVERY, at, code, value))


def test_a_frame_of_a_later_version_is_told_from_one_that_is_damaged() -> None:
    later = int.from_bytes(b"goq\x02", "little")
    with pytest.raises(UnsupportedFormat, match="format 2, and this goq knows 1"):
        check(with_field(EVERY, 0, "I", later))
    damaged = bytearray(EVERY)
    damaged[3] = 2
    with pytest.raises(InvalidFrame):
        check(bytes(damaged))


@pytest.mark.parametrize("length", [0, 63, 64, 65, 71, len(EVERY) - 8, len(EVERY) + 8, 2**32 - 1])
def test_a_wrong_length_is_refused(length: int) -> None:
    data = bytearray(EVERY)
    data[4:8] = length.to_bytes(4, "little")
    data[60:64] = resealed(data)[60:64]
    with pytest.raises(InvalidFrame):
        check(bytes(data))
    import crc32c

    data[60:64] = crc32c.crc32c(bytes(data[:60])).to_bytes(4, "little")
    with pytest.raises(InvalidFrame):
        check(bytes(data))


def test_bytes_after_the_last_section_are_refused() -> None:
    with pytest.raises(InvalidFrame, match="after"):
        check(resealed(EVERY + bytes(8)))


def test_events_are_no_messages() -> None:
    with pytest.raises(InvalidFrame, match="events"):
        check(event_frame())


def test_marks_of_empty_keys_without_keys_are_refused() -> None:
    frame = encode_frame(Columns([b"a"]))
    with pytest.raises(InvalidFrame, match="without keys"):
        check(with_field(frame, 32, "I", Attribute.KEY_NULLS))


# One value: offsets of the values lie at 72, after the 8 bytes of lengths.


@pytest.mark.parametrize(
    "offsets",
    [(0, 3, 2, 4), (1, 2, 3, 4), (-1, 0, 1, 4), (0, -1, 1, 4), (0, 9, 9, 4), (0, 1, 2, 9),
     (0, 1, 2, 0), (0, 1, 2, -4), (0, 1, 2, 2**31 - 1), (2**31 - 1, -(2**31), 0, 4)],
)  # fmt: skip
@pytest.mark.parametrize("count", [3, 40])
def test_offsets_that_do_not_rise_from_0_to_the_end_are_refused(
    offsets: tuple[int, ...], count: int
) -> None:
    frame = bytearray(encode_frame(Columns([b"a", b"b", b"cd"] + [b""] * (count - 3))))
    tail = offsets[3:] * (count - 2)
    struct.pack_into(f"<{count + 1}i", frame, 72, *offsets[:3], *tail)
    with pytest.raises((InvalidFrame, TooLarge)):
        check(resealed(frame))


def tenant_frame(numbers: list[int], names: int, offsets: list[int], data: bytes) -> bytes:
    def padded(section: bytes) -> bytes:
        return section + bytes(-len(section) % 8)

    columns = (
        padded(struct.pack(f"<{len(numbers)}H", *numbers))
        + struct.pack("<Q", names)
        + padded(struct.pack(f"<{len(offsets)}i", *offsets))
        + padded(data)
    )
    plain = encode_frame(Columns([b"v"] * len(numbers)))
    frame = bytearray(plain[:64] + columns + plain[64:])
    frame[32:36] = Attribute.TENANT.to_bytes(4, "little")
    return resealed(frame)


def test_a_sound_dictionary_of_tenants_is_taken() -> None:
    view = check(tenant_frame([0, 1, 0xFFFF], 2, [0, 1, 3], "aü".encode()))
    assert view.columns(0, 3).tenants == ["a", "ü", None]


TENANTS = {
    "a number past the dictionary": ([2], 2, [0, 1, 2], b"ab"),
    "a number just below none": ([0xFFFE], 2, [0, 1, 2], b"ab"),
    "no dictionary": ([0], 0, [0], b""),
    "offsets that fall": ([0, 0], 3, [0, 2, 1, 3], b"abc"),
    "offsets that begin late": ([0, 0], 2, [1, 2, 3], b"abc"),
    "offsets below 0": ([0, 0], 2, [-1, 2, 3], b"abc"),
    "offsets past the data": ([0, 0], 2, [0, 9, 3], b"abc"),
    "names that are not UTF-8": ([0], 1, [0, 2], b"\xff\xfe"),
    "a name that ends inside a character": ([0, 1], 2, [0, 1, 2], "ü".encode()),
    "more names than numbers can say": ([0], 65_536, [0] * 65_537, b""),
    "more names than there can be": ([0], 2**63, [0], b""),
}


@pytest.mark.parametrize("parts", TENANTS.values(), ids=TENANTS)
def test_tenants_that_are_not_as_they_should_be_are_refused(
    parts: tuple[list[int], int, list[int], bytes],
) -> None:
    with pytest.raises((InvalidFrame, TooLarge)):
        check(tenant_frame(*parts))


def header_frame(counts: list[int], names: list[bytes], values: list[bytes]) -> bytes:
    def padded(section: bytes) -> bytes:
        return section + bytes(-len(section) % 8)

    def column(entries: list[bytes]) -> bytes:
        offsets = [sum(map(len, entries[:n])) for n in range(len(entries) + 1)]
        return padded(struct.pack(f"<{len(offsets)}i", *offsets)) + padded(b"".join(entries))

    plain = encode_frame(Columns([b"v"] * (len(counts) - 1)))
    payload = plain[72:] + padded(struct.pack(f"<{len(counts)}i", *counts))
    payload += column(names) + column(values)
    frame = bytearray(plain[:64] + struct.pack("<II", len(payload), len(payload)) + payload)
    frame[32:36] = Attribute.HEADERS.to_bytes(4, "little")
    return resealed(frame)


def test_sound_headers_are_taken() -> None:
    view = check(header_frame([0, 1, 1, 2], ["ü".encode(), b"b"], [b"\xff", b""]))
    assert view.headers(0, 3) == [(("ü", b"\xff"),), (), (("b", b""),)]


HEADERS = {
    "counts that fall": ([0, 2, 1], [b"a"], [b""]),
    "counts that begin late": ([1, 1, 1], [b"a"], [b""]),
    "counts below 0": ([0, -1, 1], [b"a"], [b""]),
    "a negative end": ([0, 0, -1], [b"a"], [b""]),
    "a very negative end": ([0, 0, -5], [b"a"], [b""]),
    "an end past all bytes": ([0, 0, 2**31 - 1], [b"a"], [b""]),
    "an empty name": ([0, 1, 2], [b"a", b""], [b"", b""]),
    "a name that is not UTF-8": ([0, 1, 1], [b"\xff"], [b""]),
    "names split inside a character": ([0, 1, 2], [b"\xc3", b"\xbc"], [b"", b""]),
    "a surrogate": ([0, 1, 1], [b"\xed\xa0\x80"], [b""]),
}


@pytest.mark.parametrize("parts", HEADERS.values(), ids=HEADERS)
def test_headers_that_are_not_as_they_should_be_are_refused(
    parts: tuple[list[int], list[bytes], list[bytes]],
) -> None:
    with pytest.raises((InvalidFrame, TooLarge)):
        check(header_frame(*parts))


# Compression


def zstd_frame(stored: bytes, raw_bytes: int) -> bytes:
    plain = encode_frame(Columns([b"v"]))
    body = struct.pack("<II", raw_bytes, len(stored)) + stored + bytes(-len(stored) % 8)
    frame = bytearray(plain[:64] + body)
    frame[32:36] = Attribute.ZSTD.to_bytes(4, "little")
    return resealed(frame)


PAYLOAD = encode_frame(Columns([b"v"]))[72:]
PACKED = zstandard.ZstdCompressor().compress(PAYLOAD)
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00junk"
NO_SIZE = zstandard.ZstdCompressor(write_content_size=False).compress(PAYLOAD)
BOMB = zstandard.ZstdCompressor().compress(bytes(2**28))


def test_a_sound_compressed_payload_is_taken() -> None:
    assert check(zstd_frame(PACKED, len(PAYLOAD))).values(0, 1) == [b"v"]


COMPRESSED = {
    "a length too low": (PACKED, len(PAYLOAD) - 8),
    "a length too high": (PACKED, len(PAYLOAD) + 8),
    "a length of 0": (PACKED, 0),
    "the highest length": (PACKED, 2**32 - 1),
    "no compressed bytes": (b"", len(PAYLOAD)),
    "no zstd frame": (b"\xff" * 40, len(PAYLOAD)),
    "a zstd frame cut off": (PACKED[:-3], len(PAYLOAD)),
    "two zstd frames": (PACKED + PACKED, len(PAYLOAD)),
    "bytes after it": (PACKED + b"x", len(PAYLOAD)),
    "a frame to be skipped": (SKIPPABLE, 0),
    "a frame to be skipped first": (SKIPPABLE + PACKED, len(PAYLOAD)),
    "no declared size": (NO_SIZE, len(PAYLOAD)),
    "a bomb that says so": (BOMB, 2**28),
    "a bomb that lies": (BOMB, 1000),
}


@pytest.mark.parametrize(("stored", "raw_bytes"), COMPRESSED.values(), ids=COMPRESSED)
def test_a_compressed_payload_that_is_not_what_it_says_is_refused(
    stored: bytes, raw_bytes: int
) -> None:
    with pytest.raises((InvalidFrame, TooLarge)):
        check(zstd_frame(stored, raw_bytes))


def test_a_bomb_costs_no_memory() -> None:
    import tracemalloc

    frame = zstd_frame(BOMB, 1000)
    with tracing():
        with pytest.raises(InvalidFrame):
            check(frame)
        with pytest.raises(TooLarge):
            check(zstd_frame(BOMB, 2**28))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000


# Every limit, on both sides


def taken(columns: Columns, *, compress: bool = False) -> FrameView:
    return check(encode_frame(columns, compress=compress))


def test_as_many_messages_as_allowed_are_taken_and_one_more_is_not() -> None:
    count = limits.FRAME_MESSAGES_MAX
    view = taken(Columns([b""] * count))
    assert view.header.message_count == count
    with pytest.raises(TooLarge, match="65536 messages"):
        encode_frame(Columns([b""] * (count + 1)))
    with pytest.raises(TooLarge):
        encode_frame(Columns([]))


def test_a_value_as_long_as_allowed_is_taken_and_one_byte_more_is_not() -> None:
    taken(Columns([bytes(limits.VALUE_BYTES_MAX)]))
    with pytest.raises(TooLarge, match="value"):
        taken(Columns([bytes(limits.VALUE_BYTES_MAX + 1)]))


def test_a_key_as_long_as_allowed_is_taken_and_one_byte_more_is_not() -> None:
    taken(Columns([b""] * 40, keys=[bytes(limits.KEY_BYTES_MAX)] * 40))
    with pytest.raises(TooLarge, match="key"):
        taken(Columns([b""] * 40, keys=[bytes(limits.KEY_BYTES_MAX + 1)] + [None] * 39))


def test_a_frame_as_long_as_allowed_is_taken_and_one_byte_more_is_not() -> None:
    overhead = len(encode_frame(Columns([b"", b"", b""])))
    third = (limits.FRAME_BYTES_MAX - overhead) // 8 * 8 - limits.VALUE_BYTES_MAX
    whole = [bytes(limits.VALUE_BYTES_MAX), bytes(third), b""]
    assert taken(Columns(whole)).header.frame_bytes == limits.FRAME_BYTES_MAX
    with pytest.raises(TooLarge, match="smaller batches"):
        encode_frame(Columns([*whole[:2], b"x"]))


def test_compression_does_not_make_room_for_more_than_a_frame() -> None:
    """Any part of a frame is given out uncompressed, and must then be a frame."""
    count = limits.FRAME_MESSAGES_MAX
    overhead = len(encode_frame(Columns([b""] * count, deliver_at_ms=[0] * count)))
    room = limits.FRAME_BYTES_MAX - overhead
    values = [bytes(limits.VALUE_BYTES_MAX), bytes(room - limits.VALUE_BYTES_MAX)]
    columns = Columns(values + [b""] * (count - 2), deliver_at_ms=[0] * count)
    view = taken(columns, compress=True)
    assert view.header.attributes & Attribute.ZSTD
    use_everything(view)
    columns = Columns(values + [b"x"] + [b""] * (count - 3), deliver_at_ms=[0] * count)
    with pytest.raises(TooLarge, match="uncompressed"):
        encode_frame(columns, compress=True)
    payload = bytes(limits.FRAME_BYTES_MAX - 72)
    with pytest.raises(InvalidFrame):
        check(zstd_frame(zstandard.ZstdCompressor().compress(payload), len(payload)))
    payload = bytes(limits.FRAME_BYTES_MAX - 64)
    with pytest.raises(TooLarge, match="uncompressed"):
        check(zstd_frame(zstandard.ZstdCompressor().compress(payload), len(payload)))


def test_as_many_headers_as_allowed_are_taken_and_one_more_is_not() -> None:
    header = ("n", b"v")
    taken(Columns([b""] * 2, headers=[[header] * limits.HEADERS_PER_MESSAGE_MAX] * 2))
    with pytest.raises(TooLarge, match="header"):
        taken(Columns([b""] * 2, headers=[[header] * (limits.HEADERS_PER_MESSAGE_MAX + 1), []]))


def test_a_header_name_as_long_as_allowed_is_taken_and_one_byte_more_is_not() -> None:
    taken(Columns([b""], headers=[[("n" * limits.HEADER_NAME_BYTES_MAX, b"")]]))
    with pytest.raises(TooLarge, match="header name"):
        taken(Columns([b""], headers=[[("n" * (limits.HEADER_NAME_BYTES_MAX + 1), b"")]]))


@pytest.mark.parametrize("names", [1, 60])
def test_headers_as_long_together_as_allowed_are_taken_and_one_byte_more_is_not(names: int) -> None:
    room = limits.HEADERS_BYTES_MAX - 100 * names
    headers = [("n" * 100, b"")] * (names - 1)
    taken(Columns([b""] * 2, headers=[[*headers, ("n" * 100, bytes(room))], []]))
    with pytest.raises(TooLarge, match="headers"):
        taken(Columns([b""] * 2, headers=[[*headers, ("n" * 100, bytes(room + 1))], []]))


def test_as_many_tenants_as_allowed_are_taken_and_one_more_is_not() -> None:
    count = limits.TENANTS_PER_FRAME_MAX
    names = [str(n) for n in range(count)]
    view = taken(Columns([b""] * count, tenants=names))
    assert view.columns(count - 1, count).tenants == [names[-1]]
    with pytest.raises(TooLarge, match="tenants"):
        encode_frame(Columns([b""] * (count + 1), tenants=[*names, "one more"]))


def test_a_sequence_as_high_as_allowed_is_taken_and_one_higher_is_not() -> None:
    highest = 2**63 - 1 - 2
    frame = encode_frame(Columns([b"a", b"b"]), producer=ProducerMark(1, 0, highest))
    use_everything(check(frame))
    frame = encode_frame(Columns([b"a", b"b"]), producer=ProducerMark(1, 0, highest + 1))
    with pytest.raises(InvalidFrame, match="first_sequence"):
        check(frame)


LANES_ONLY = TopicSettings(delay_max_ms=3_600_000)
NOW_MS = 1_700_000_000_000
ASKING = {
    "a lane that is not": Columns([b"x"] * 3, lanes=[0, 3, 1]),
    "the last lane of all": Columns([b"x"], lanes=[255]),
    "a delay over the limit": Columns([b"x"] * 2, deliver_at_ms=[0, -limits.DELAY_MS_MAX - 1]),
    "delivery at the beginning of time": Columns([b"x"], deliver_at_ms=[-(2**63)]),
    "delivery later than is allowed": Columns(
        [b"x"] * 2, deliver_at_ms=[0, NOW_MS + 3_600_000 + limits.CLOCK_SLACK_MS + 1]
    ),
    "delivery at the end of time": Columns([b"x"], deliver_at_ms=[2**63 - 1]),
    "a time to live over the limit": Columns([b"x"] * 2, expires_at_ms=[-limits.TTL_MS_MAX - 1, 0]),
    "expiry in the year 10000": Columns([b"x"], expires_at_ms=[limits.TIME_MS_MAX + 1]),
    "a tenant without a name": Columns([b"x"] * 2, tenants=["a", ""]),
}


@pytest.mark.parametrize("columns", ASKING.values(), ids=ASKING)
def test_what_a_topic_does_not_allow_is_refused(columns: Columns) -> None:
    view = FrameView.parse(encode_frame(columns))
    check_frame(view)
    with pytest.raises(InvalidInput):
        check_delivery(view, LANES_ONLY, NOW_MS)


def test_a_sound_frame_that_a_topic_does_not_allow_is_not_called_unsound() -> None:
    delayed = FrameView.parse(encode_frame(Columns([b"x"], deliver_at_ms=[-3_600_001])))
    with pytest.raises(InvalidInput, match=r"delay\.max, which is 1h") as raised:
        check_delivery(delayed, LANES_ONLY, NOW_MS)
    assert raised.value.code == "invalid_input"


def test_what_a_topic_just_allows_is_taken() -> None:
    latest_ms = NOW_MS + 3_600_000 + limits.CLOCK_SLACK_MS
    columns = Columns(
        [b"x"] * 3,
        lanes=[0, 2, 1],
        deliver_at_ms=[0, 1, latest_ms],
        expires_at_ms=[0, 1, limits.TIME_MS_MAX],
        tenants=["a", "t" * limits.TENANT_NAME_BYTES_MAX, None],
        dedup_ids=[bytes(16), b"\xff" * 16, b"\1" * 16],
    )
    view = FrameView.parse(encode_frame(columns))
    check_frame(view)
    check_delivery(view, LANES_ONLY, NOW_MS)
    numbered = FrameView.parse(encode_frame(Columns([b"x"], lanes=[255])))
    check_delivery(numbered, TopicSettings(lanes=()), NOW_MS)
    check_delivery(FrameView.parse(encode_frame(Columns([b"x"]))), LANES_ONLY, NOW_MS)


def test_a_tenants_name_has_a_limit() -> None:
    name = "t" * (limits.TENANT_NAME_BYTES_MAX + 1)
    with pytest.raises(TooLarge, match="tenant name"):
        check(encode_frame(Columns([b"x"] * 2, tenants=["a", name])))


def test_only_the_node_leaves_messages_out() -> None:
    frame = encode_frame(Columns([b"x"]), left_out=[(1, 2, 3)])
    with pytest.raises(InvalidFrame, match="leaves messages out"):
        check(frame)
    with pytest.raises(InvalidFrame):
        check(with_field(encode_frame(Columns([b"x"])), 34, "H", 1))
    with pytest.raises(InvalidFrame, match="cannot have"):
        check(with_field(encode_frame(Columns([b"x"] * 2)), 34, "H", 65_535))


def test_a_frame_with_dedup_ids_leaves_room_for_a_note_of_what_is_left_out() -> None:
    def of(value_bytes: int) -> FrameView:
        values = [b"", bytes(limits.VALUE_BYTES_MAX), bytes(value_bytes)]
        return FrameView.parse(encode_frame(Columns(values, dedup_ids=[b"d" * 16] * 3)))

    spare_bytes = limits.FRAME_BYTES_MAX - len(of(0).buffer)
    with pytest.raises(TooLarge, match="dedup ids"):
        check_delivery(of(spare_bytes), LANES_ONLY, NOW_MS)
    largest = of(spare_bytes - limits.LEFT_OUT_BYTES_MAX)
    check_delivery(largest, LANES_ONLY, NOW_MS)
    drop_duplicates(largest, [(0, 1, 2)])
