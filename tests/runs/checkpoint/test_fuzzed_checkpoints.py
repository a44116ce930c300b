"""Damaged and hostile files are named and refused, or they are what was written; nothing is ever executed."""

from collections import Counter
from pathlib import Path

import pytest
from fuzzed_checkpoints import DAMAGES, Victim, fuzz, hostile, peak_bytes
from resume_runs import run

from ludus.runs.checkpoint import format
from ludus.training import state_arrays

pytestmark = pytest.mark.slow

COUNT, FILES = 250, 150
"""Checkpoints of each of two runs, and files of a policy and of a critic."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short runs, one with a replay that is written in many pieces."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "BLOCK_BYTES", 512)
        patch.setattr(state_arrays, "BLOCK_BYTES", 512)
        patch.setattr(state_arrays, "LONG_BYTES", 1024)
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
    assert outcomes["rejected"] > COUNT // 2 and outcomes["fell back"] > COUNT // 10
    assert outcomes["rows lost"] and bool(outcomes["mended"]) == ("sac" in case)
    # A file that says nothing of the state may say what it likes; everything else must be found out.
    assert {row["kind"] for row in rows if row["outcome"] == "identical"} <= {"odd_latest", "odd_journal"}
    assert {row["kind"] for row in rows} == {damage.__name__ for damage in DAMAGES}
    assert peak_bytes() - before < 100e6


@pytest.mark.parametrize("name", ["final_actor", "final_critic"])
def test_a_hostile_policy_or_critic_is_refused_in_one_line_that_names_it(name, runs, tmp_path):
    file = Path(runs["ppo gym"], "policies", f"{name}.safetensors")
    before = peak_bytes()
    rows = [hostile(number, file, tmp_path) for number in range(FILES)]
    assert [row for row in rows if row["failure"]] == []
    assert sum(row["outcome"] == "rejected" for row in rows) > FILES // 2
    assert peak_bytes() - before < 300e6
