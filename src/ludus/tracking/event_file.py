"""TensorBoard's event files, written and read without any library.

An event file is a row of records: a length, a checksum of the length, the bytes, a checksum of the bytes (the format
of TFRecord). The bytes are an `Event` message of protocol buffers, which `tensorboard/compat/proto/event.proto`
describes; the few fields that are needed are written by hand here. tensorboardX would need an event for each single
number, and imports PyTorch where that is installed, which takes longer than training CartPole. Here a row of the
journal is one event with all its numbers, and the event also says which row it is, in fields that TensorBoard does
not know and skips: what has been written and how far are one and the same record, so they cannot disagree.
"""

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus import files

MOST_FILE, MOST_RECORD = 1 << 40, 1 << 26
"""Bytes of a file and of a record that are read; none of ours is as long."""
POLYNOMIAL = 0x82F63B78
"""Of CRC-32C (Castagnoli), bits reversed."""
STRIDE = 512
"""Bytes that the checksum takes in at once."""
MASK_DELTA = 0xA282EAD8
"""Added to checksums, so that those of data that hold checksums are not weak."""
ROW, FINGERPRINT = 100, 101
"""Fields of an event that TensorBoard does not know: the number of the journal's row, and its line's CRC-32."""
VERSION = b"brain.Event:2"
FLOAT, STRING = 1, 7
"""Types of tensors."""
SUCCESS = 1
"""Status of a session that has ended well."""


class Mark(NamedTuple):
    """Which row of the journal an event was made from."""

    row: int
    fingerprint: int


class Record(NamedTuple):
    """A record of an event file: where it begins and ends, and its mark if it is a row's."""

    start: int
    stop: int
    mark: Mark | None


# Checksums


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """What each byte does to the checksum if 0, 1, ... more bytes follow, in one row; and where each of these begins.

    A checksum is linear: all bytes of a block are looked up at once, and what they do is added up (by XOR).
    """
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(POLYNOMIAL), first >> 1)
    tables = [first]
    for _ in range(STRIDE - 1):
        tables.append((tables[-1] >> 8) ^ first[tables[-1] & 0xFF])
    return np.concatenate(tables), np.arange(STRIDE)[::-1] * 256


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    tables, offsets = _tables()
    state = 0xFFFFFFFF
    for start in range(0, len(data), STRIDE):
        block = np.frombuffer(data, np.uint8, min(STRIDE, len(data) - start), start).astype(np.intp)
        head = min(4, len(block))
        block[:head] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8, head)
        state = (state >> 8 * head) ^ int(np.bitwise_xor.reduce(tables[offsets[STRIDE - len(block) :] + block]))
    return state ^ 0xFFFFFFFF


def _masked(checksum: int) -> bytes:
    rotated = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + MASK_DELTA) & 0xFFFFFFFF)


@lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + _masked(crc32c(packed))


def framed(event: bytes) -> bytes:
    """Return an event as a record."""
    return _header(len(event)) + event + _masked(crc32c(event))


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


def event(seconds: float, step: int, values: Sequence[bytes], mark: Mark | None = None) -> bytes:
    """Return the record of an event: when, at which step, and what it shows; a row's mark comes first."""
    head = b"" if mark is None else _int(ROW, mark.row) + _int(FINGERPRINT, mark.fingerprint)
    return framed(head + _double(1, seconds) + _int(2, step) + _bytes(5, b"".join(values)))


def opening(seconds: float, step: int) -> bytes:
    """Return the records that a file begins with: whatever a reader knows from `step` on is taken back."""
    start = _double(1, seconds) + _int(2, step) + _bytes(7, _int(1, 1))
    return framed(_double(1, seconds) + _bytes(3, VERSION)) + framed(start)


# Reading


def records(path: Path) -> Iterator[Record]:
    """Yield the records of a file, up to the first that is not whole."""
    with os.fdopen(files.open_regular(path, MOST_FILE), "rb") as file:
        size, start = os.fstat(file.fileno()).st_size, 0
        while True:
            head = file.read(12)
            if len(head) < 12 or head != _header(length := struct.unpack_from("<Q", head)[0]):
                return
            stop = start + 12 + length + 4
            if stop > size or length > MOST_RECORD:
                return
            data, checksum = file.read(length), file.read(4)
            if stop == size and checksum != _masked(crc32c(data)):
                return  # the last one: it may have its length and not yet all of its bytes
            yield Record(start, stop, _mark(data))
            start = stop


def _mark(data: bytes) -> Mark | None:
    try:
        key, position = _read_varint(data, 0)
        if key != ROW << 3:
            return None
        row, position = _read_varint(data, position)
        _, position = _read_varint(data, position)
        return Mark(row, _read_varint(data, position)[0])
    except IndexError:
        return None


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        part = data[position]
        value |= (part & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if part < 0x80 or shift > 63:
            return value, position


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Return the settings of a configuration by their keys, such as `algorithm.gamma`; what is null is left out."""
    flat: dict[str, bool | int | float | str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat
