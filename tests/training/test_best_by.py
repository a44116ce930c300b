"""The best policy, by whatever figure of the journal a run is told to judge by."""

import json
import math

import jax
import numpy as np
import pytest
from resume_runs import iterations, trainer

import ludus
from ludus.algorithms.policy import BEST_BY
from ludus.report.html.make import make_report
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.runs.journal import read_journal
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.past_policies import learned_at
from ludus.types import LudusError

pytestmark = pytest.mark.slow


def trained(run, best_by, best_mode, **options):
    checkpoint = CheckpointOptions(1, every_minutes=0, best_every=1, best_by=best_by, best_mode=best_mode)
    made = trainer("ppo jax", run, checkpoint=checkpoint, **options)
    made.train(total_steps=iterations("ppo jax", 8))
    return made


@pytest.mark.requirement("S4.15")
@pytest.mark.parametrize(("figure", "mode"), [("value_loss", "min"), ("value_loss", "max")])
def test_policy_file_checkpoint_and_report_follow_the_figure(tmp_path, figure, mode):
    run = tmp_path / "run"
    trained(run, figure, mode, eval_frequency=0)
    rows = {row["steps"]: row[figure] for row in read_journal(run) if row["kind"] == "train"}
    step = {"min": min, "max": max}[mode](rows, key=rows.__getitem__)
    best = read_identity(run)["best"]
    assert best == {"by": figure, "mode": mode, "value": pytest.approx(rows[step]), "steps": step}
    assert Checkpoints(run).best() == step
    kept, saved = ludus.load_policy(run / BEST_BY), learned_at(run, str(step))[0]
    for a, b in zip(jax.tree.leaves(kept.state), jax.tree.leaves(saved.state), strict=True):
        np.testing.assert_array_equal(a, b)
    page = make_report([run]).page.read_text()
    assert f"best by {figure}" in page and {"min": "the lowest", "max": "the highest"}[mode] in page
    assert json.loads((run / "report/training_summary.json").read_text())["best"] == best


@pytest.mark.requirement("S4.15")
def test_a_figure_of_evaluations_is_judged_with_each_and_with_the_last(tmp_path):
    run = tmp_path / "run"
    checkpoint = CheckpointOptions(1, every_minutes=0, best_by="eval_length_mean", best_mode="min")
    made = trainer("ppo jax", run, checkpoint=checkpoint, eval_frequency=3)
    made.final_episodes = 3
    made.train(total_steps=iterations("ppo jax", 8))
    rows = [(row["eval_length_mean"], row["steps"]) for row in read_journal(run) if row["kind"] == "evaluation"]
    assert len(rows) == 3
    best = read_identity(run)["best"]
    assert (best["value"], best["steps"]) == min(rows)


def test_who_resumes_by_another_figure_begins_anew(tmp_path):
    run = tmp_path / "run"
    trained(run, "value_loss", "max", eval_frequency=0)
    resumed = ludus.Trainer.resume(run, **{"total_steps": iterations("ppo jax", 10), "checkpoint.best_by": "entropy"})
    resumed.final_episodes = 0
    resumed.train()
    # The policy that the resume begins with is the first that is judged: by the row of its iteration, the eighth.
    rows = [(row["entropy"], row["steps"]) for row in read_journal(run) if row["kind"] == "train"][7:]
    best = read_identity(run)["best"]
    assert best["by"] == "entropy" and math.isclose(best["value"], max(rows)[0]) and best["steps"] == max(rows)[1]


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(LudusError, match=r"checkpoint\.best_mode=lowest: must be one of max, min"):
        CheckpointOptions(best_mode="lowest")
