"""Rules that end a run early, on lists of returns with known answers, and in real runs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import ludus
from ludus.envs.native.probes import PROBES
from ludus.runs.folder import read_identity
from ludus.runs.journal import read_journal
from ludus.training.stopping import Convergence, ConvergenceOptions, Sample

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S1.20")]


def fed(returns: list[float], **options) -> tuple[Convergence, int | None]:
    """Return the rule after returns one by one, and after how many it was fulfilled."""
    rule, at = Convergence(ConvergenceOptions("window", **options)), None
    for number, total in enumerate(returns, 1):
        rule.saw_episodes(1, total)
        if rule.ends_run and at is None:
            at = number
    return rule, at


def test_the_window_must_be_full_and_hold_the_target_for_the_patience():
    assert fed([10.0] * 100, target_return=10, window=5, patience=3)[1] == 5 + 3
    assert fed([10.0] * 100, target_return=10, window=5, patience=0)[1] == 5
    assert fed([9.9] * 100, target_return=10, window=5, patience=0)[1] is None
    assert fed([10.0] * 4, target_return=10, window=5, patience=0)[1] is None


def test_an_evaluation_that_misses_the_target_refutes_the_window():
    rule, at = fed([10.0] * 8, target_return=10, window=5, patience=3)
    assert at == 8
    rule.saw_evaluation([12.0, 7.0])
    assert not rule.ends_run and rule.held == 0 and rule.best_average == 10
    for _ in range(4):
        rule.saw_episodes(1, 10.0)
    assert rule.ends_run, "the wait begins anew, the window stays"
    rule.saw_evaluation([11.0, 10.0])
    assert rule.is_converged
    rule.begin_anew()
    assert (rule.held, rule.ends_run, rule.average, rule.best_average) == (0, False, None, 10)


def test_falling_below_the_target_starts_the_wait_anew():
    returns = [10.0] * 7 + [0.0] + [10.0] * 20  # the bad episode leaves the window of 5 after 5 more
    assert fed(returns, target_return=10, window=5, patience=3)[1] == 8 + 5 + 3


def test_an_average_that_still_improves_does_not_keep_a_run_from_ending():
    assert fed(list(np.arange(10.0, 60.0)), target_return=10, window=5, patience=3)[1] == 8


def test_the_best_average_is_kept():
    rule, _ = fed([1, 2, 3, 9, 9, 1, 1, 1], target_return=100, window=2)
    assert rule.best_average == 9 and rule.average == 1
    assert rule.best_avg_reward == 9
    few = fed([5.0, 6.0], target_return=100, window=3)[0]
    assert few.best_average is None and few.best_avg_reward == 5.5
    assert fed([], target_return=100, window=2)[0].best_avg_reward is None


def test_episodes_that_end_together_count_as_many():
    rule = Convergence(ConvergenceOptions("window", target_return=10, window=6, patience=4))
    rule.saw_episodes(4, 40.0)
    assert rule.average is None
    rule.saw_episodes(4, 44.0)
    assert rule.average == 84 / 8 and not rule.is_converged  # whole groups: eight is the fewest that holds six
    rule.saw_episodes(1, 10.0)
    assert rule.is_converged
    rule.saw_episodes(0, 0.0)
    rule.saw_episodes(2, math.inf)
    assert rule.is_converged and rule.average == (44 + 40 + 10) / 9


@pytest.mark.parametrize(("returns", "target", "converged"), [
    ([500.0] * 10, 475, True),
    ([480.0, 470.0] * 5, 475, False),  # the mean reaches it, but not surely
    ([490.0, 480.0] * 5, 475, True),
    ([500.0], 475, True),
])  # fmt: skip
def test_an_interval_must_lie_above_the_target(returns, target, converged):
    rule = Convergence(ConvergenceOptions("interval"), return_threshold=target)
    rule.saw_evaluation(returns)
    assert rule.is_converged is rule.ends_run is converged
    if len(returns) > 1:
        low = np.mean(returns) - stats.t.ppf(0.95, len(returns) - 1) * stats.sem(returns)
        assert converged == (low >= target)


def test_a_plateau_is_no_significant_improvement_over_the_best_before():
    spread = np.linspace(-1, 1, 10)
    rule = Convergence(ConvergenceOptions("plateau", evaluations=3))
    for mean in (10, 20, 30):
        rule.saw_evaluation(list(mean + spread))
        assert not rule.ends_run
    for number in range(1, 4):
        rule.saw_evaluation(list(30.1 + spread))
        assert rule.ends_run == (number == 3)
    assert rule.is_converged  # no target is given, so this is all there is


def test_a_plateau_below_the_target_ends_the_run_unconverged():
    rule = Convergence(ConvergenceOptions("plateau", evaluations=1, target_return=100))
    rule.saw_evaluation([50.0, 51.0])
    rule.saw_evaluation([50.0, 51.0])
    assert rule.ends_run and not rule.is_converged


@pytest.mark.parametrize("rule", ["interval", "plateau"])
def test_an_evaluation_that_is_not_finite_says_nothing(rule):
    judged, other = (Convergence(ConvergenceOptions(rule, target_return=1, evaluations=2)) for _ in range(2))
    for returns in ([math.nan, 0.0], [0.0, 0.5], [math.inf, -math.inf], [0.0, 0.4], [0.1, 0.3]):
        judged.saw_evaluation(returns)
        if all(map(math.isfinite, returns)):
            other.saw_evaluation(returns)
    assert judged.snapshot() == other.snapshot() and judged.ends_run == other.ends_run == (rule == "plateau")


def test_significance_is_that_of_welchs_test():
    rng = np.random.default_rng(1)
    from ludus.training.stopping import _is_better

    decisions = set()
    for _ in range(200):
        new, old = rng.normal(0.5, 1, 8), rng.normal(0, 2, 12)
        expected = stats.ttest_ind(new, old, equal_var=False, alternative="greater").pvalue < 0.05
        assert _is_better(Sample.of(new), Sample.of(old), 0.95) == expected
        decisions.add(bool(expected))
    assert decisions == {True, False}


def test_what_was_seen_can_be_saved_and_restored():
    options = ConvergenceOptions("window", target_return=10, window=5, patience=30)
    rule = Convergence(options)
    for total in np.random.default_rng(2).uniform(5, 15, 40):
        rule.saw_episodes(1, float(total))
    rule.saw_evaluation([1.0, 2.0])
    again = Convergence(options)
    again.restore(rule.snapshot())
    assert again.snapshot() == rule.snapshot()
    for watched in (rule, again):
        watched.saw_episodes(3, 40.0)
    assert again.snapshot() == rule.snapshot()


@pytest.mark.parametrize(("options", "message"), [
    ({"rule": "soon"}, "convergence.rule=soon: must be one of none, window, interval, plateau"),
    ({"window": 0}, "convergence.window=0: must be an integer of at least 1"),
    ({"patience": -1}, "convergence.patience=-1"),
    ({"confidence": 1.0}, "convergence.confidence=1.0"),
    ({"target_return": math.nan}, "convergence.target_return=nan"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ludus.LudusError, match=message):
        ConvergenceOptions(**options)


def test_a_rule_that_needs_a_target_is_refused_where_there_is_none():
    with pytest.raises(ludus.LudusError, match=r"give convergence.target_return"):
        env = ludus.make_env(PROBES["endless-chain"](), 4)
        ludus.Trainer(ludus.PPO(), env, ludus.Settings(convergence=ConvergenceOptions("window")))
    with pytest.raises(ludus.LudusError, match="needs evaluations"):
        ludus.Trainer(
            ludus.PPO(),
            ludus.make_env("CartPole-v1", 4),
            ludus.Settings(convergence=ConvergenceOptions("interval"), eval_frequency=0),
        )


def trainer(run_dir, *, anneal=True, **settings) -> ludus.Trainer:
    rule = ConvergenceOptions("window", target_return=60, window=20, patience=5)
    algorithm = ludus.PPO(
        batch_size=256, minibatch_size=64, epochs_per_update=4, learning_rate=1e-3, anneal_learning_rate=anneal
    )
    settings = {"convergence": rule, "eval_frequency": 0, "verbose": False, **settings}
    return ludus.Trainer(algorithm, ludus.make_env("CartPole-v1", 4), ludus.Settings(**settings), run_dir=run_dir)


@pytest.mark.requirement("S1.21", "S1.22")
def test_a_run_that_converged_is_evaluated_and_saved_and_says_so(tmp_path):
    result = trainer(tmp_path / "run").train(total_steps=200_000)
    assert result.stopped_by == "convergence" and result.converged and result.steps < 200_000
    assert result.evaluation is not None and len(result.evaluation.returns) == 100
    assert read_identity(tmp_path / "run")["converged"] is True
    assert read_journal(tmp_path / "run")[-1]["kind"] == "evaluation"
    assert (tmp_path / "run" / "policies" / "final_actor.safetensors").exists()


def test_a_run_stops_at_the_same_iteration_however_it_was_cut(tmp_path, monkeypatch):
    straight = trainer(tmp_path / "a", anneal=False).train(total_steps=200_000)
    monkeypatch.setattr("ludus.training.trainer.CHUNK_SECONDS", 1e-9)
    assert trainer(None, anneal=False).train(total_steps=200_000).iterations == straight.iterations
    monkeypatch.undo()
    halfway = 256 * (straight.iterations // 2)
    trainer(tmp_path / "b", anneal=False).train(total_steps=halfway)
    resumed = ludus.Trainer.resume(tmp_path / "b", total_steps=200_000).train()
    assert (resumed.iterations, resumed.stopped_by) == (straight.iterations, "convergence")


def test_a_run_goes_on_where_an_evaluation_refutes_its_window(tmp_path, monkeypatch):
    straight = trainer(None).train(total_steps=200_000)
    doubted = trainer(tmp_path / "run")
    evaluate, asked = doubted.judge._evaluate, []

    def doubting(episodes: int, watch: Any) -> ludus.Evaluation:
        asked.append((doubted.record.iterations, episodes))
        evaluation = evaluate(episodes, watch)
        return replace(evaluation, returns=evaluation.returns - 1000 * (len(asked) == 1))

    monkeypatch.setattr(doubted.judge, "_evaluate", doubting)
    result = doubted.train(total_steps=200_000)
    assert asked[0] == (straight.iterations, 100) and result.iterations > straight.iterations
    assert result.converged and result.evaluation.returns.mean() >= 60
    assert asked[-1] == (result.iterations, 100) and asked[-2][0] < result.iterations, "once for each policy"


def test_the_final_evaluation_has_the_last_word():
    run = trainer(None)
    claims = []

    def claim(metrics: dict) -> None:
        if metrics["eval_metrics"] is None:  # the last call comes after the final evaluation
            run.judge.convergence.is_converged = True
        claims.append(metrics["iteration"])

    result = run.train(total_steps=3 * 256, callback=claim)
    assert claims == [1, 2, 3] and result.evaluation.returns.mean() < 60 and not result.converged


def test_training_on_after_convergence_is_judged_anew():
    run = trainer(None)
    first = run.train(total_steps=200_000)
    again = run.train(total_steps=first.steps + 512)
    assert (again.iterations, again.stopped_by) == (first.iterations + 2, "total_steps")
    third = run.train(total_steps=200_000)
    assert third.converged and third.episodes >= again.episodes + 20 + 5
