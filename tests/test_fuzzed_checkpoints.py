"""Damaged and hostile files are named and refused, or they are what was written; nothing is ever executed."""

from collections import Counter

import pytest

from fuzzed_checkpoints import DAMAGES, Victim, fuzz, peak_bytes
from ludus import checkpoint, snapshot
from resume_runs import run

COUNT = 250
"""Of each of two runs."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short runs, one with a replay that is written in many pieces."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "BLOCK_BYTES", 512)
        patch.setattr(snapshot, "BLOCK_BYTES", 512)
        patch.setattr(snapshot, "LONG_BYTES", 1024)
        for case in ("sac jax", "ppo gym"):
            run(case, folder / case, 4)
    return {case: folder / case for case in ("sac jax", "ppo gym")}


@pytest.mark.requirement("S4.16")
@pytest.mark.parametrize("case", ["sac jax", "ppo gym"])
def test_a_damaged_checkpoint_is_named_and_refused_or_it_is_what_was_written(case, runs, tmp_path):
    victim = Victim(runs[case])
    before = peak_bytes()
    rows = [fuzz(number, victim, tmp_path) for number in range(COUNT)]
    assert [row for row in rows if row["failure"]] == []
    outcomes = Counter(row["outcome"] for row in rows)
    assert outcomes["rejected"] > COUNT // 2 and outcomes["fell back"] > COUNT // 8
    # A file that says nothing of the state may say what it likes; everything else must be found out.
    assert {row["kind"] for row in rows if row["outcome"] == "identical"} <= {"odd_latest"}
    assert {row["kind"] for row in rows} == {damage.__name__ for damage in DAMAGES}
    assert peak_bytes() - before < 100e6
