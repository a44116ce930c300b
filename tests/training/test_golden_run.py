"""A run that an early version wrote is resumed by every later one.

`tests/golden/run-1` was written once (PPO, two CartPoles, four iterations) and is never changed: a version that cannot
go on with it needs a migration, not another golden run. The runs `run-2-*` were written before modules moved into the
rooms they have now: PPO and SAC, compiled and in Python, with and without a memory.
"""

import json
import shutil

import numpy as np
import places
import pytest

import ludus
from ludus.cli.main import main
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.runs.journal import read_journal
from ludus.training.past_policies import policy_at
from ludus.training.restore import LATER
from ludus.training.verify import state_of

pytestmark = pytest.mark.slow

GOLDEN = places.GOLDEN / "run-1"
SECOND = ("ppo-cartpole", "gru-cartpole", "sac-pendulum", "ppo-gymnasium")
CLOCK = ("seconds", "elapsed", "steps_per_second", "time")
"""Beginnings of figures that a clock decides."""
NEW = ("saturation/",)
"""Figures that runs have had since."""


@pytest.mark.requirement("S4.13")
def test_the_golden_run_is_resumed_where_it_was_and_goes_on(tmp_path):
    run = shutil.copytree(GOLDEN, tmp_path / "run")
    saved = state_of(run)
    resumed = ludus.Trainer.resume(run, total_steps=256, verbose=False)
    assert (resumed.record.iterations, resumed.record.steps, resumed.record.updates) == (4, 128, 8)
    resumed.final_episodes = 0
    resumed.train()
    assert read_identity(run)["resumed"] == [{"steps": 128, "level": "exact"}]
    rows, before = read_journal(run), read_journal(GOLDEN)
    assert rows[:4] == before
    assert [row["seq"] for row in rows] == list(range(8))
    assert rows[-1]["steps"] == 256
    state = state_of(run)
    assert {name for name in state.keys() ^ saved.keys() if not name.startswith((*LATER, "env/generators"))} == set()
    for name in saved.keys() - {name for name in saved if name.startswith("env/actions")}:
        assert state[name].shape == saved[name].shape, name
    assert any((state[name] != saved[name]).any() for name in state if name.startswith("learner/parameters"))


@pytest.mark.requirement("S2.22", "S4.14")
def test_the_golden_policies_and_the_golden_checkpoint_act_alike():
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    final, at_checkpoint = ludus.load_policy(GOLDEN), policy_at(GOLDEN, "latest")
    assert (final(obs) == at_checkpoint(obs)).all()
    assert len(set(final(obs).tolist())) == 2
    assert Checkpoints(GOLDEN).steps() == [128]


def figures(run, kind):
    """Rows of a journal, without what a clock decides and without histograms, in which a bin's edge may be rounded."""
    rows = [row for row in read_journal(run) if row["kind"] == kind]
    return [{name: x for name, x in row.items() if not name.startswith((*CLOCK, "histogram"))} for row in rows]


def assert_alike(rows, before):
    """The same figures; another processor may round differently, and a few iterations make little of that."""
    for row, old in zip(rows, before, strict=True):
        assert {name for name in row if not name.startswith(NEW)} == old.keys()
        for name, value in old.items():
            is_number = isinstance(value, int | float)
            assert row[name] == (pytest.approx(value, rel=1e-3, abs=1e-3) if is_number else value), name


@pytest.mark.requirement("S4.13", "S2.22")
@pytest.mark.parametrize("name", SECOND)
def test_a_run_of_the_version_before_goes_on_as_it_went_on_then(tmp_path, name):
    golden = places.GOLDEN / f"run-2-{name}"
    run = shutil.copytree(golden, tmp_path / "run")
    earlier = Checkpoints(run).steps()[-2]
    ludus.Trainer.resume(run, earlier, verbose=False).train()
    assert read_identity(run)["resumed"] == [{"steps": earlier, "level": "exact"}]
    for kind in ("train", "evaluation"):
        assert_alike(figures(run, kind), figures(golden, kind))


@pytest.mark.requirement("S4.14", "S1.26")
@pytest.mark.parametrize("name", SECOND)
def test_a_policy_of_the_version_before_scores_what_it_scored_then(name, capsys):
    golden = places.GOLDEN / f"run-2-{name}"
    assert main(["evaluate", str(golden), "--episodes", "8", "--seed", "3", "--json"]) == 0
    said, then = json.loads(capsys.readouterr().out), figures(golden, "evaluation")[-1]
    assert said["mean_return"] == pytest.approx(then["eval_return_mean"], rel=1e-3)


@pytest.mark.parametrize("name", SECOND)
def test_a_run_of_the_version_before_is_reported(tmp_path, capsys, name):
    run = shutil.copytree(places.GOLDEN / f"run-2-{name}", tmp_path / "run")
    assert main(["report", str(run), "--no-images"]) == 0
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert "Return" in page and f"{read_identity(run)['steps']:,}" in page
