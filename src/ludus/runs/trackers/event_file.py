"""TensorBoard's event files, written without any library.

An event file is a row of records: a length, a checksum of the length, the bytes, a checksum of the bytes (the format
of TFRecord). The bytes are an `Event` message of protocol buffers, which `tensorboard/compat/proto/event.proto`
describes; the few fields that are needed are written by hand here. tensorboardX would need an event for each single
number, and imports PyTorch where that is installed, which takes longer than training CartPole. Here a row of the
journal is one event with all its numbers.
"""

import math
import os
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ludus.runtime import files

POLYNOMIAL = 0x82F63B78
"""Of CRC-32C (Castagnoli), bits reversed."""
CHECKSUM_BYTES = 4
STRIDE, AT_ONCE = 512, 512
"""Bytes that the checksum takes in at once, and of how many messages."""
MOST_FILE = 1 << 40
"""Bytes of a file that is looked at."""
MASK_DELTA = 0xA282EAD8
"""Added to checksums, so that those of data that hold checksums are not weak."""
PLACE_FIELD, PLACE = 100, struct.Struct("<QQIQ")
"""A field of an event that TensorBoard does not know and skips, and what it holds: a place in the journal."""
VERSION = b"brain.Event:2"
FLOAT, STRING = 1, 7
"""Types of tensors."""
SUCCESS = 1
"""Status of a session that has ended well."""


# Checksums


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Return what each byte does to the checksum if 0, 1, ... more bytes follow, in one row; and where each begins.

    A checksum is linear: all bytes of a block are looked up at once, and what they do is added up (by XOR).
    """
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(POLYNOMIAL), first >> 1)
    tables = [first]
    for _ in range(STRIDE - 1):
        tables.append((tables[-1] >> 8) ^ first[tables[-1] & 0xFF])
    return np.concatenate(tables), np.arange(STRIDE)[::-1] * 256


def crc32c(rows: np.ndarray) -> np.ndarray:
    """Return the CRC-32C of each row of bytes."""
    tables, offsets = _tables()
    state = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for start in range(0, rows.shape[1], STRIDE):
        block = rows[:, start : start + STRIDE].astype(np.intp)
        width = block.shape[1]
        head = min(CHECKSUM_BYTES, width)
        block[:, :head] ^= state.astype("<u4").view(np.uint8).reshape(-1, CHECKSUM_BYTES)[:, :head]
        left = state >> np.uint32(8 * head) if head < CHECKSUM_BYTES else np.uint32(0)
        state = left ^ np.bitwise_xor.reduce(tables[offsets[STRIDE - width :] + block], axis=1)
    return state ^ np.uint32(0xFFFFFFFF)


def _checksums(messages: Sequence[bytes]) -> list[bytes]:
    """Return the masked checksums of messages that are equally long."""
    sums = crc32c(np.frombuffer(b"".join(messages), np.uint8).reshape(len(messages), -1)).astype(np.uint64)
    masked = (sums >> np.uint64(15) | sums << np.uint64(17)) + np.uint64(MASK_DELTA)
    data = masked.astype("<u4").tobytes()
    return [data[i : i + CHECKSUM_BYTES] for i in range(0, len(data), CHECKSUM_BYTES)]


@lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + _checksums([packed])[0]


def framed(messages: Sequence[bytes]) -> bytes:
    """Return messages as records. Checksums are made of many at once: rows of a journal are mostly equally long."""
    alike: dict[int, list[int]] = {}
    for i, message in enumerate(messages):
        alike.setdefault(len(message), []).append(i)
    checksums: dict[int, bytes] = {}
    for numbers in alike.values():
        for first in range(0, len(numbers), AT_ONCE):
            some = numbers[first : first + AT_ONCE]
            checksums |= zip(some, _checksums([messages[i] for i in some]), strict=True)
    return b"".join(
        part for i, message in enumerate(messages) for part in (_header(len(message)), message, checksums[i])
    )


# Protocol buffers: a field is its number and kind, then a number or a length and bytes


def _varint(n: int) -> bytes:
    parts = bytearray()
    while n > 0x7F:
        parts.append(n & 0x7F | 0x80)
        n >>= 7
    parts.append(n)
    return bytes(parts)


def _int(number: int, n: int) -> bytes:
    return _varint(number << 3) + _varint(n)


def _double(number: int, x: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", x)


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode())


def _doubles(number: int, values: Sequence[float]) -> bytes:
    return _bytes(number, struct.pack(f"<{len(values)}d", *values))


# Summaries: what an event shows


@lru_cache(maxsize=4096)
def _scalar_head(tag: str) -> bytes:
    named = _text(1, tag) + b"\x15"  # field 2, 32 bits wide, follows
    return b"\x0a" + _varint(len(named) + 4) + named


def scalar(tag: str, value: float) -> bytes:
    """Show a number."""
    try:
        return _scalar_head(tag) + struct.pack("<f", value)
    except OverflowError:  # beyond what 32 bits hold
        return _scalar_head(tag) + struct.pack("<f", math.copysign(math.inf, value))


def histogram(tag: str, low: float, high: float, counts: Sequence[int]) -> bytes:
    """Show counts in bins of equal width; sums, which are asked for too, are those of the bins' middles."""
    bins = np.asarray(counts, np.float64)
    edges = np.linspace(low, high, len(bins) + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    message = _double(1, low) + _double(2, high) + _double(3, bins.sum())
    message += _double(4, float(bins @ middles)) + _double(5, float(bins @ middles**2))
    return _value(tag, _bytes(5, message + _doubles(6, edges[1:].tolist()) + _doubles(7, bins.tolist())))


def markdown(tag: str, text: str) -> bytes:
    """Show a text."""
    tensor = _int(1, STRING) + _bytes(2, b"") + _text(8, text)
    return _value(tag, _bytes(8, tensor) + _plugin("text", b""))


def gif(tag: str, data: bytes) -> bytes:
    """Show a moving picture."""
    width, height = struct.unpack_from("<HH", data, 6)
    image = _int(1, height) + _int(2, width) + _int(3, 3) + _bytes(4, data)
    return _value(tag, _bytes(4, image))


def session_start(settings: Mapping[str, bool | int | float | str], group: str, seconds: float) -> bytes:
    """Tell the hyperparameter dashboard what a run was configured to be."""
    entries = [_bytes(1, _text(1, name) + _bytes(2, _json_value(value))) for name, value in settings.items()]
    return _session("start", 3, b"".join(entries) + _text(4, group) + _double(5, seconds))


def session_end(seconds: float) -> bytes:
    """Tell the hyperparameter dashboard that a run has ended well."""
    return _session("end", 4, _int(1, SUCCESS) + _double(2, seconds))


def _session(name: str, field: int, message: bytes) -> bytes:
    nothing = _int(1, FLOAT) + _bytes(2, _bytes(2, b""))  # a tensor without entries: all is in the metadata
    return _value(f"_hparams_/session_{name}_info", _bytes(8, nothing) + _plugin("hparams", _bytes(field, message)))


def _json_value(value: bool | int | float | str) -> bytes:
    if isinstance(value, bool):
        return _int(4, int(value))
    return _double(2, value) if isinstance(value, int | float) else _text(3, value)


def _plugin(name: str, content: bytes) -> bytes:
    return _bytes(9, _bytes(1, _text(1, name) + _bytes(2, content)))


def _value(tag: str, content: bytes) -> bytes:
    return _bytes(1, _text(1, tag) + content)


# Events


def event(seconds: float, step: int, values: Sequence[bytes]) -> bytes:
    """Return the message of an event: when, at which step, and what it shows."""
    return _double(1, seconds) + _int(2, step) + _bytes(5, b"".join(values))


def opening(seconds: float) -> bytes:
    """Return the records that a file begins with: whatever a reader knows of files before it is taken back."""
    start = _double(1, seconds) + _int(2, 0) + _bytes(7, _int(1, 1))
    return framed([_double(1, seconds) + _bytes(3, VERSION), start])


# The last record of a file that was closed says up to where the journal is in it


def place(offset: int, rows: int, ending: int, step: int) -> bytes:
    """Return the record of a place in the journal: bytes and rows before it, their checksum, and the step there."""
    return framed([_bytes(PLACE_FIELD, PLACE.pack(offset, rows, ending, step))])


def last_place(path: Path) -> tuple[int, int, int, int] | None:
    """Return the place that a file ends with; None if it does not end with one, as after a crash."""
    size = len(place(0, 0, 0, 0))
    with os.fdopen(files.open_regular(path, MOST_FILE), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        record = file.read(size)
    if len(record) < size:
        return None
    found = PLACE.unpack_from(record, size - CHECKSUM_BYTES - PLACE.size)
    return found if record == place(*found) else None
