"""Run folders with anything in them: whatever can be shown is shown, and nothing ends in a traceback."""

import json
import math
import random

import pytest
from run_folders import full_rows, make_run

from ludus.report.comparison import compare
from ludus.report.html.make import make_report
from ludus.report.tables import comparison_table, runs_table
from ludus.runs.reader import list_runs

VALUES = (
    None, True, 0, -1, 1e308, -1e308, 5e-324, 10**30, "x", "", [], [1, "a", None, 1e308], {}, 1.5, math.nan, math.inf,
    {"low": 0, "high": 0, "counts": [1]}, {"low": 1, "high": 0, "counts": [1, 2]},
    {"low": 0, "high": 1, "counts": [0, 0]}, {"low": -1e308, "high": 1e308, "counts": [1, 2]},
    {"low": 0, "high": 1, "counts": [-1, 1]},
)  # fmt: skip
"""What may stand where something else is meant."""
BASE = full_rows(30)
NAMES = (*sorted({name for row in BASE for name in row}), "zzz_loss", "seconds/x", "info/a/mean", "gradient_norm/q")
IDENTITY = ("status", "exit_reason", "devices", "versions", "steps")
CONFIG = ("seed", "env", "algorithm", "convergence", "success_return", "num_envs")


@pytest.mark.parametrize("trial", range(25))
def test_nothing_in_a_run_folder_ends_in_a_traceback(tmp_path, trial):
    chance = random.Random(trial)
    rows = [dict(row) for row in BASE[: chance.choice([1, 3, 35])]]
    for _ in range(chance.randint(1, 60)):
        row, name = chance.choice(rows), chance.choice(NAMES)
        row[name] = chance.choice(VALUES)
        if chance.random() < 0.2:
            del row[name]
    identity = {name: chance.choice(VALUES) for name in chance.sample(IDENTITY, 2)}
    config = {name: chance.choice(VALUES) for name in chance.sample(CONFIG, 2)}
    runs = [make_run(tmp_path / str(i), rows, seed=i, identity=identity, config=config) for i in (0, 1)]
    assert make_report(runs[:1]).page.exists()
    assert make_report(runs, tmp_path / "both.html").page.exists()
    comparison, listed = compare(runs), list_runs(tmp_path)
    assert comparison_table(comparison) and runs_table(listed)
    json.dumps([comparison.plain(), *(row.plain() for row in listed)], allow_nan=False)
