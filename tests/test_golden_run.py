"""A run that an early version wrote is resumed by every later one.

`tests/golden/run-1` was written once (PPO, two CartPoles, four iterations) and is never changed: a version that cannot
go on with it needs a migration, not another golden run.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ludus
from ludus.checkpoint import Checkpoints
from ludus.resume import LATER, policy_at
from ludus.tracking.run_folder import read_identity, read_journal
from ludus.verify import state_of

GOLDEN = Path(__file__).parent / "golden" / "run-1"


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
    assert {name for name in state.keys() ^ saved.keys() if not name.startswith(LATER)} == set()
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
