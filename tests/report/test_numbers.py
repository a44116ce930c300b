"""Rows read thousands at a time, against Python's own JSON."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.report import journal
from ludus.report.journal import Block
from ludus.report.numbers import FEWEST, Lines, numbers, read_alike


def parsed(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    lines = Lines("".join(f"{text}\n" for text in texts).encode())
    return numbers(lines, lines.starts, lines.ends)


SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
SHORT = st.integers(-(10**14), 10**14).flatmap(lambda m: st.integers(0, 9).map(lambda k: m / 10**k))


@given(st.lists(st.one_of(SINGLES, SHORT, st.integers(-(10**15), 10**15)), min_size=1))
@settings(max_examples=300, deadline=None)
def test_singles_short_numbers_and_whole_ones_are_exact(values):
    made, good = parsed([json.dumps(value) for value in values])
    assert made[good].tolist() == [float(value) for value, is_good in zip(values, good, strict=True) if is_good]
    usual = [value == 0 or 1e-30 < abs(value) < 1e15 for value in values]
    assert good[usual].all()


@given(st.lists(st.floats(1e-25, 1e15) | st.floats(-1e15, -1e-25), min_size=1))
@settings(max_examples=300, deadline=None)
def test_any_other_number_is_right_but_for_its_last_bit(values):
    made, good = parsed([json.dumps(value) for value in values])
    assert good.all()
    for value, read in zip(values, made, strict=True):
        assert abs(read - value) <= 2 * math.ulp(value), (value, read)


@pytest.mark.parametrize(
    "text",
    ["", "-", ".5", "5.", "1.2.3", "1-2", "--1", "+1", "1e5", "e+05", "1e+", "1e++5", "1e+5e+05", "1.e+05", "0x10",
     "12345678901234567890", "0.12345678901234567890123", "1e+301", "0.0000000000000000000000000001", "1E+05"],
)  # fmt: skip
def test_what_is_no_number_or_too_long_is_left_to_others(text):
    made, good = parsed(["1.5", text, "2.5"])
    assert good.tolist() == [True, False, True]
    assert (made[0], made[2]) == (1.5, 2.5)


DAMAGED = ("", "{", '{"kind": "train", "steps": 1.2.3}', "[1]", '{"seq": 1, "kind": "train", "steps"}')


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_block_says_what_json_says(seed):
    """Rows of several shapes, in any order, with damaged lines among them."""
    random = np.random.default_rng(seed)
    lines, rows = [], []
    for i in range(200):
        row = {"seq": i, "kind": journal.KINDS[random.integers(2)], "steps": int(random.integers(10**10))}
        row |= {f"norm/actor/{random.integers(3)}": float(np.float32(random.normal()))} if random.random() < 0.5 else {}
        row |= {"mean": float(np.float32(random.normal() * 10.0 ** random.integers(-9, 9)))}
        row |= {"flag": True, "text": "e5-1.0"} if random.random() < 0.2 else {}
        row |= {"nothing": None, "list": [1, {"a": 2}]} if random.random() < 0.1 else {}
        rows.append(row)
        lines.append(json.dumps(row))
        if random.random() < 0.1:
            lines.append(
                ["", "{", '{"kind": "train", "steps": 1.2.3}', "[1]", '{"seq": 1, "kind": "train", "steps"}'][i % 5]
            )
    block = Block("".join(f"{line}\n" for line in lines).encode())
    assert block.damaged == sum(bool(line) for line in lines) - len(rows)
    for kind in journal.KINDS:
        wanted = [row for row in rows if row["kind"] == kind]
        table = block.table(kind)
        assert table.rows == len(wanted)
        names = {name for row in wanted for name in row} - {"kind", "text", "nothing", "list"}
        assert set(table.columns) == names
        for name in names:
            column = np.array([row.get(name, np.nan) for row in wanted], float)
            assert np.array_equal(table.column(name), column, equal_nan=True), name
        assert table.objects.get("list", []) == [(i, row["list"]) for i, row in enumerate(wanted) if "list" in row]


def test_names_of_one_shape_are_told_apart():
    """Digits and the letter e are no part of a shape: only the place and the whole name tell these rows apart."""
    rows = [{"norm/0": 1.0, "kind": "train"}] * FEWEST + [{"norm/1": 2.0, "kind": "train"}] * FEWEST
    rows += [{"me": 3.0, "kind": "train"}] * FEWEST + [{"m": 4.0, "kind": "train"}] * FEWEST
    table = Block("".join(json.dumps(row) + "\n" for row in rows).encode()).table("train")
    found = {name: column[np.isfinite(column)] for name, column in table.columns.items()}
    assert {name: (len(column), set(column)) for name, column in found.items()} == {
        name: (FEWEST, {value}) for name, value in (("norm/0", 1.0), ("norm/1", 2.0), ("me", 3.0), ("m", 4.0))
    }


def test_most_rows_of_a_real_journal_are_read_together():
    rows = [{"seq": i, "kind": "train", "steps": 64 * i, "entropy": float(np.float32(1 / (i + 1)))} for i in range(500)]
    lines = Lines("".join(json.dumps(row) + "\n" for row in rows).encode())
    [alike] = lines.shapes().values()
    read = read_alike(lines, alike)
    assert read is not None and len(read.lines) == 500 and read.constants == {"kind": "train"}


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\n\n\n", b"\xff\xfe\n", b"{}\n" * 50, b'{"a,b": 1}\n' * 50, b"1\n" * 50]
)
def test_strange_blocks_do_not_end_a_reader(text):
    block = Block(text)
    assert block.table("train").rows == block.table("evaluation").rows == 0
