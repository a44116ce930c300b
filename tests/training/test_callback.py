"""Users' functions and objects that hear how training goes, and change it."""

import math

import jax
import numpy as np
import pytest

import ludus
from ludus.cli.main import main
from ludus.report.html.make import make_report
from ludus.runs.folder import read_config, read_identity
from ludus.runs.journal import read_journal
from ludus.runtime import user_code
from ludus.runtime.compilation import compile_clock
from ludus.training.callback import Callbacks, Event
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

pytestmark = pytest.mark.slow


def trainer(run_dir=None, **settings) -> ludus.Trainer:
    algorithm = ludus.PPO(batch_size=128, minibatch_size=64, epochs_per_update=1, anneal_learning_rate=False)
    settings = {"eval_frequency": 0, "verbose": False, **settings}
    run = ludus.Trainer(algorithm, ludus.make_env("CartPole-v1", 2), ludus.Settings(**settings), run_dir=run_dir)
    run.final_episodes = 0
    return run


@pytest.mark.requirement("S1.23")
def test_it_hears_of_every_iteration(tmp_path):
    heard = []
    trainer(tmp_path / "run").train(total_steps=640, callback=heard.append)
    rows = read_journal(tmp_path / "run")
    assert [metrics["iteration"] for metrics in heard] == [1, 2, 3, 4, 5]
    assert [metrics["episode"] for metrics in heard] == [row["episodes"] for row in rows]
    for metrics, row in zip(heard, rows, strict=True):
        assert metrics["step_metrics"]["avg_reward"] == row["episode_return_mean"]
        assert metrics["step_metrics"]["kl_divergence"] == row["approx_kl"]
        assert metrics["step_metrics"]["entropy_loss"] == -row["entropy"]
        assert metrics["eval_metrics"] is None


@pytest.mark.requirement("S1.23")
def test_it_hears_of_every_episode_where_they_are_recorded(tmp_path):
    heard = []
    trainer(tmp_path / "run", record_episodes=True).train(total_steps=640, callback=heard.append)
    rows = read_journal(tmp_path / "run")
    returns = [total for row in rows for total in row["episode_returns"]]
    assert [metrics["episode"] for metrics in heard] == list(range(1, len(returns) + 1))
    assert [metrics["step_metrics"]["avg_reward"] for metrics in heard] == returns
    assert [metrics["step_metrics"]["avg_length"] for metrics in heard] == returns


@pytest.mark.requirement("S1.23")
def test_it_gets_the_evaluation_that_there_was_and_causes_none(tmp_path):
    heard = []
    trainer(tmp_path / "run", eval_frequency=2, eval_episodes=3).train(total_steps=640, callback=heard.append)
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "evaluation"]
    told = {metrics["iteration"]: metrics["eval_metrics"] for metrics in heard if metrics["eval_metrics"]}
    # Those before the first iteration and after the last have no iteration to be told with.
    assert {row["iteration"]: row["eval_return_mean"] for row in rows if row["iteration"]} == {
        iteration: figures["avg_reward"] for iteration, figures in told.items()
    }
    assert told


@pytest.mark.requirement("S1.18")
def test_evaluations_can_be_counted_in_episodes(tmp_path):
    trainer(tmp_path / "run", eval_frequency=10, eval_by="episodes", eval_episodes=2).train(max_episodes=60)
    rows = read_journal(tmp_path / "run")
    evaluated = [row["episodes"] for row in rows if row["kind"] == "evaluation"]
    ended = [row["episodes"] for row in rows if row["kind"] == "train"]
    crossed = [new for old, new in zip([0, *ended], ended, strict=False) if new // 10 > old // 10]
    assert evaluated == [n for n in crossed if n < ended[-1]]


def test_returning_false_ends_the_run_with_everything_saved(tmp_path):
    result = trainer(tmp_path / "run").train(total_steps=10_000, callback=lambda metrics: metrics["iteration"] < 3)
    assert (result.iterations, result.stopped_by) == (3, "callback")
    identity = read_identity(tmp_path / "run")
    assert (identity["status"], identity["exit_reason"]) == ("finished", "callback")
    assert ludus.load_policy(tmp_path / "run")


def test_one_that_raises_is_named_and_the_run_goes_on(tmp_path, capsys):
    calls = []

    def unlucky(metrics):
        calls.append(metrics)
        raise ValueError("no such luck")

    result = trainer(verbose=True).train(total_steps=640, callback=unlucky)
    assert result.steps == 640 and len(calls) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "unlucky" in line]
    assert len(said) == 1 and "raised ValueError: no such luck; training goes on without it" in said[0]


@pytest.mark.parametrize("wrong", [lambda: None, lambda a, b: None, 3])
def test_what_cannot_be_called_with_the_metrics_is_refused(wrong):
    with pytest.raises(ludus.LudusError, match=r"callback=.*must be a function of one argument[^<]*$"):
        trainer().train(total_steps=640, callback=wrong)


def test_it_changes_nothing_about_training(tmp_path):
    trainer(tmp_path / "a").train(total_steps=1280)
    trainer(tmp_path / "b").train(total_steps=1280, callback=lambda metrics: None)
    a, b = (journal_of(tmp_path / name) for name in "ab")
    assert a == b


# Objects


class Heard(ludus.Callback):
    """Remembers what it heard; does more if a test says so."""

    def __init__(self, **does):
        self.events, self.does = [], does

    def _hear(self, what, event):
        self.events.append((what, event.iteration, event.stopped_by, bool(event.metrics)))
        self.does.get(what, lambda event: None)(event)

    def on_start(self, event):
        self._hear("start", event)

    def on_rollout(self, event):
        self._hear("rollout", event)

    def on_evaluation(self, event):
        self._hear("evaluation", event)

    def on_end(self, event):
        self._hear("end", event)


def kinds(run) -> list[dict]:
    return [row for row in read_journal(run) if row["kind"] == "train"]


def test_an_object_hears_the_start_each_rollout_each_evaluation_and_the_end(tmp_path):
    heard = Heard()
    trainer(tmp_path / "run", eval_frequency=2, eval_episodes=2).train(total_steps=512, callback=heard)
    assert heard.events == [
        ("start", 0, None, False),
        ("rollout", 1, None, True), ("rollout", 2, None, True), ("evaluation", 2, None, True),
        ("rollout", 3, None, True), ("rollout", 4, None, True), ("end", 4, "total_steps", False),
    ]  # fmt: skip


def test_an_object_adds_figures_to_the_row_that_it_hears_of_and_the_report_shows_them(tmp_path):
    def spread(event):
        event.add("eval_spread", np.float32(np.ptp(event.evaluation.returns)))

    heard = Heard(rollout=lambda event: event.add("mine/double", 2 * event.steps), evaluation=spread)
    run = tmp_path / "run"
    trainer(run, eval_frequency=2, eval_episodes=2).train(total_steps=512, callback=[heard])
    rows = read_journal(run)
    assert [row["mine/double"] for row in kinds(run)] == [2 * row["steps"] for row in kinds(run)]
    evaluated = [row for row in rows if row["kind"] == "evaluation"]
    assert evaluated and all(row["eval_spread"] == row["eval_return_max"] - row["eval_return_min"] for row in evaluated)
    page = make_report([run]).page.read_text()
    assert "mine/double" in page and "eval_spread" in page


def raised(what, capsys) -> str:
    heard = Heard(**what)
    assert trainer(verbose=True).train(total_steps=256, callback=heard).steps == 256
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "callback Heard" in line]
    return line


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"rollout": lambda event: event.add("x", math.nan)}, "add: x=nan: must be a finite number"),
        ({"rollout": lambda event: event.add("x", "1")}, "add: x='1': must be a finite number"),
        ({"rollout": lambda event: event.add("entropy", 1)}, "add: entropy: the journal has a figure of that name"),
        ({"rollout": lambda event: event.add("seq", 1)}, "add: seq: the journal has a figure of that name"),
        ({"rollout": lambda event: event.add("a b", 1)}, "add: 'a b' must be a name of letters"),
        ({"start": lambda event: event.add("x", 1)}, "add: x: there is no row to add to at the start"),
        ({"rollout": lambda event: 1 / 0}, "raised ZeroDivisionError"),
    ],
)
def test_an_object_that_asks_for_what_cannot_be_is_named_once_and_the_run_goes_on(what, message, capsys):
    line = raised(what, capsys)
    assert message in line and line.endswith("training goes on without it")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learning_rte", 1e-3, "algorithm.learning_rte=0.001: no such hyperparameter; did you mean learning_rate?"),
        ("batch_size", 64, "algorithm.batch_size=64: shapes the compiled program"),
        ("gamma", 1.5, "algorithm.gamma=1.5: must be between 0 and 1"),
        ("gamma", "0.5", "algorithm.gamma='0.5': must be a finite number"),
        ("gamma", math.inf, "algorithm.gamma=inf: must be a finite number"),
        ("learning_rate", 1e300, "must be a finite number of 32 bits"),
        ("entropy_coef", 0.1, "follows a schedule, linear:0.01:0"),
        ("target_kl", 0.1, "is null in this run"),
    ],
)
def test_what_cannot_be_changed_is_refused_in_one_line_and_nothing_is_changed(name, value, message):
    algorithm = ludus.PPO(entropy_coef="linear:0.01:0")
    made = ludus.Trainer(algorithm, ludus.make_env("CartPole-v1", 2), ludus.Settings(verbose=False))
    before = made.loop.arrays
    with pytest.raises(ludus.LudusError) as caught:
        Event({}, _controls=made.changes).set(name, value)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert made.loop.arrays is before and made.changes.values == {}


@pytest.mark.parametrize("env", ["CartPole-v1", "gym:CartPole-v1"])
def test_a_changed_hyperparameter_counts_from_the_next_iteration_on_and_compiles_nothing(env):
    def stop_learning(event):
        if event.iteration == 3:
            event.set("learning_rate", 0.0)
            seen.append(jax.device_get(made.policy.state))
            compiled.append(compile_clock().total)

    algorithm = ludus.PPO(batch_size=64, minibatch_size=32, epochs_per_update=1, normalize_observations=False)
    settings = ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0)
    made = ludus.Trainer(algorithm, ludus.make_env(env, 2, num_workers=0), settings)
    seen, compiled = [], []
    made.train(total_steps=448, callback=Heard(rollout=stop_learning))
    assert compile_clock().total == compiled[0]
    after = jax.device_get(made.policy.state)
    parameters = [tree["parameters"] if isinstance(tree, dict) else tree.parameters for tree in (seen[0], after)]
    jax.tree.map(np.testing.assert_array_equal, *parameters)


def test_changes_are_journalled_and_kept_so_that_a_resumed_run_is_exact(tmp_path):
    often = {"checkpoint": ludus.CheckpointOptions(every_iterations=1), "callbacks": ["own_parts:Halving"]}
    trainer(tmp_path / "whole", **often).train(total_steps=896)
    trainer(tmp_path / "parts", **often).train(total_steps=384)
    resumed = ludus.Trainer.resume(tmp_path / "parts", verbose=False, total_steps=896)
    resumed.final_episodes = 0
    resumed.train()
    assert journal_of(tmp_path / "whole") == journal_of(tmp_path / "parts")
    assert differences(state_of(tmp_path / "whole"), state_of(tmp_path / "parts")) == []
    rates = [row.get("hyperparameter/learning_rate") for row in kinds(tmp_path / "parts")]
    first = np.float32(3e-4)
    assert rates == [None, None, *(float(first / n) for n in (2, 2, 4, 4, 8))]
    # Without its callback it goes on with what it was changed to.
    alone = ludus.Trainer.resume(tmp_path / "parts", verbose=False, total_steps=1152, callbacks=())
    alone.final_episodes = 0
    alone.train()
    assert [row["hyperparameter/learning_rate"] for row in kinds(tmp_path / "parts")[7:]] == [float(first / 8)] * 2


@pytest.mark.parametrize("when", ["start", "rollout", "evaluation"])
def test_an_object_ends_the_run(tmp_path, when):
    heard = Heard(**{when: lambda event: event.stop() if event.iteration in (0, 2) else None})
    made = trainer(tmp_path / "run", eval_frequency=2 if when == "evaluation" else 0, eval_episodes=1)
    result = made.train(total_steps=10_000, callback=heard)
    assert (result.iterations, result.stopped_by) == (0 if when == "start" else 2, "callback")
    assert heard.events[-1][0] == "end" and heard.events[-1][2] == "callback"
    assert read_identity(tmp_path / "run")["exit_reason"] == "callback"


def test_one_that_does_not_hear_rollouts_does_not_cut_the_run_into_single_iterations():
    class Quiet(ludus.Callback):
        """Hears evaluations alone."""

        def on_evaluation(self, event):
            pass

    made = [Callbacks([one], print, trainer().changes) for one in (Quiet(), Heard(), lambda metrics: None)]
    assert [one.hears_rollouts for one in made] == [False, True, True]


def test_callbacks_of_the_command_line_follow_the_one_rule(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(user_code, "_followed", {})
    budget = ["total_steps=640", "eval_frequency=0", "eval_episodes_final=0", "record_behaviour=false", "verbose=false"]
    few = ["env=CartPole-v1", "num_envs=2", "algorithm.batch_size=64", "algorithm.minibatch_size=64"]
    words = [*few, *budget]
    named = "callbacks=[own_parts:Halving,own_parts:until_third]"
    assert main(["train", *words, "run_dir=run", named]) == 0
    assert len(kinds("run")) == 3 and read_config("run")["callbacks"] == ["own_parts:Halving", "own_parts:until_third"]
    monkeypatch.setattr(user_code, "_followed", {})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
    assert main(["resume", "run"]) == 2
    assert "names code that you have not used before, own_parts:Halving" in capsys.readouterr().err
    assert main(["verify-resume", "run", "--iterations", "1"]) == 0  # leaves callbacks out, so nothing is imported
    assert user_code._followed == {}
    assert main(["train", *words, "run_dir=other", "callbacks=[own_parts:Missing]"]) == 2
    assert "callbacks=own_parts:Missing: the module own_parts has no Missing" in capsys.readouterr().err
