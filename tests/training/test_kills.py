"""A run that is killed again and again, and resumed each time, ends as the run that nobody killed."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from places import SUPPORT

pytestmark = pytest.mark.slow

KILLS = 16
"""`benchmarks/kills.py` has as many as one likes."""


@pytest.mark.requirement("S2.21", "S4.13", "S4.16")
def test_a_run_that_is_killed_at_random_moments_ends_bit_by_bit_as_the_one_that_was_not(tmp_path):
    script = SUPPORT / "kill_runs.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(KILLS)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row for row in rows if row["failure"]] == []
    assert len(rows) == KILLS
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["checkpoint"] >= KILLS // 5  # a good share died inside the writing of a checkpoint
    assert kinds["any time"] + kinds["any time, writing a checkpoint"] >= KILLS // 8
    assert len({row["case"] for row in rows}) == 4
    assert max(row["depth"] for row in rows) == 4  # up to five kills, each in the resume after the last
