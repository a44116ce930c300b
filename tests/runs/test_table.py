"""Journals read into columns, block by block, against Python's own JSON."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.runs import table
from ludus.runs.table import Block


def block_of(text: bytes) -> Block:
    return Block(text.split(b"\n"))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_a_block_says_what_json_says(seed):
    """Rows of several shapes, in any order, with damaged lines among them."""
    random = np.random.default_rng(seed)
    lines, rows = [], []
    for i in range(200):
        row = {"seq": i, "kind": table.KINDS[random.integers(2)], "steps": int(random.integers(10**10))}
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
    block = block_of("".join(f"{line}\n" for line in lines).encode())
    assert block.damaged == sum(bool(line) for line in lines) - len(rows)
    for kind in table.KINDS:
        wanted = [row for row in rows if row["kind"] == kind]
        made = block.tables[kind]
        assert made.rows == len(wanted)
        names = {name for row in wanted for name in row} - {"kind", "text", "nothing", "list"}
        assert set(made.columns) == names
        for name in names:
            column = np.array([row.get(name, np.nan) for row in wanted], float)
            assert np.array_equal(made.column(name), column, equal_nan=True), name
        assert made.objects.get("list", []) == [(i, row["list"]) for i, row in enumerate(wanted) if "list" in row]


def test_rows_with_the_same_names_in_another_order_are_told_apart():
    rows = [{"kind": "train", "a": 1.0, "b": 2.0}, {"b": 3.0, "kind": "train", "a": 4.0}, {"a": 5.0, "kind": "train"}]
    made = block_of("".join(json.dumps(row) + "\n" for row in rows).encode()).tables["train"]
    assert made.column("a").tolist() == [1.0, 4.0, 5.0]
    assert made.column("b")[:2].tolist() == [2.0, 3.0] and np.isnan(made.column("b")[2])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1), min_size=1))
@settings(max_examples=200, deadline=None)
def test_every_number_is_exact(values):
    lines = [json.dumps({"kind": "train", "x": value}).encode() for value in values]
    assert Block(lines).tables["train"].column("x").tolist() == [float(value) for value in values]


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\n\n\n", b"\xff\xfe\n", b"{}\n" * 50, b'{"a,b": 1}\n' * 50, b"1\n" * 50]
)
def test_strange_blocks_do_not_end_a_reader(text):
    block = block_of(text)
    assert block.tables["train"].rows == block.tables["evaluation"].rows == 0
