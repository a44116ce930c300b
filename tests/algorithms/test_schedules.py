"""Schedules: hyperparameters that follow the progress of a run, on the command line and in Python."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.algorithms.hyperparameters import as_arrays, at, at_end, scheduled
from ludus.algorithms.schedules import CosineSchedule, LinearSchedule, PiecewiseSchedule, WarmupSchedule, parse
from ludus.cli.main import main
from ludus.runs.folder import read_config
from ludus.runs.journal import read_journal

SHARES = np.array([0.0, 0.05, 0.25, 0.5, 0.75, 1.0], np.float32)
VALUES = {
    "linear:0.01:0": 0.01 * (1 - SHARES),
    "linear:1:3": 1 + 2 * SHARES,
    "cosine:1:0": 0.5 * (1 + np.cos(np.pi * SHARES)),
    "piecewise:0:1:0.5:3:1:0": np.interp(SHARES, [0, 0.5, 1], [1, 3, 0]),
    "piecewise:0.25:2:0.5:4": np.interp(SHARES, [0.25, 0.5], [2, 4]),
    "warmup:0.1:2": 2 * np.minimum(SHARES / 0.1, 1),
    "warmup:0.25:linear:1:0": np.minimum(SHARES / 0.25, 1) * (1 - np.clip((SHARES - 0.25) / 0.75, 0, 1)),
    "0.5": np.full(6, 0.5),
}


@pytest.mark.parametrize("text", VALUES)
def test_a_schedule_has_the_values_that_its_text_says(text):
    schedule = parse("x", text)
    assert schedule is not None
    got = jax.jit(jax.vmap(lambda schedule, share: schedule(share), (None, 0)))(as_arrays(schedule), SHARES)
    np.testing.assert_allclose(got, VALUES[text], atol=1e-6)
    if text != "0.5":
        assert str(schedule) == text and parse("x", str(schedule)) == schedule


@pytest.mark.parametrize(
    "text",
    ["fast", "linear", "linear:1", "linear:1:b", "linear:1:2:3", "piecewise:0", "piecewise:1:0:0:1", "warmup:2:1",
     "warmup:0.1", "cosine::1", "linear:nan"],
)  # fmt: skip
def test_what_is_no_schedule_is_refused_with_the_forms(text):
    with pytest.raises(ludus.LudusError, match=f"algorithm.entropy_coef={text}: must be a number, or a schedule"):
        ludus.PPO(entropy_coef=text)  # ty: ignore[invalid-argument-type]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gamma", "linear:0.9:1.1", "algorithm.gamma=linear:0.9:1.1: its values must be between 0 and 1"),
        ("learning_rate", lambda progress: 0.1 - progress, "its values must be at least 0"),
        ("entropy_coef", lambda progress: jnp.log(progress), "its values must be finite"),
    ],
)
def test_values_are_checked_over_the_whole_run_before_anything_is_compiled(name, value, message):
    with pytest.raises(ludus.LudusError, match=message):
        ludus.PPO(**{name: value})


def test_an_algorithm_is_made_anew_for_each_iteration_and_others_are_left_as_they_are():
    ppo = ludus.PPO(entropy_coef=LinearSchedule(0.1, 0.0), clip_epsilon=CosineSchedule(0.3, 0.1), batch_size=64)  # ty: ignore
    assert scheduled(ppo) == ["clip_epsilon", "entropy_coef"]
    half = jax.jit(at)(as_arrays(ppo), np.float32(0.5))
    assert (float(half.entropy_coef), float(half.clip_epsilon)) == (pytest.approx(0.05), pytest.approx(0.2))
    assert half.batch_size == 64 and float(half.gamma) == pytest.approx(0.99)
    plain = as_arrays(ludus.PPO())
    assert at(plain, np.float32(0.5)) is plain


@pytest.mark.slow
def test_a_schedule_of_the_learning_rate_replaces_its_annealing():
    assert ludus.PPO(learning_rate=1e-3).anneal_learning_rate
    assert not ludus.PPO(learning_rate="linear:1e-3:1e-4").anneal_learning_rate  # ty: ignore[invalid-argument-type]


def train(folder, env="CartPole-v1", steps=1024, **options):
    ppo = ludus.PPO(batch_size=128, minibatch_size=64, epochs_per_update=1, **options)
    settings = ludus.Settings(seed=1, verbose=False, eval_frequency=0, eval_episodes_final=2, record_behaviour=False)
    made = ludus.make_env(env, num_envs=4, **({"num_workers": 0} if env.startswith("gym:") else {}))
    trainer = ludus.Trainer(ppo, made, settings, run_dir=folder)
    trainer.train(total_steps=steps)
    return [row for row in read_journal(folder) if row["kind"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "gym:CartPole-v1"])
def test_the_journal_shows_what_a_schedule_made_of_each_iteration(tmp_path, env):
    rows = train(tmp_path / "run", env, entropy_coef="linear:0.1:0", learning_rate=lambda progress: 1e-3 + progress)
    shares = np.array([row["steps"] - 128 for row in rows]) / 1024
    np.testing.assert_allclose([row["hyperparameter/entropy_coef"] for row in rows], 0.1 * (1 - shares), rtol=1e-5)
    np.testing.assert_allclose([row["hyperparameter/learning_rate"] for row in rows], 1e-3 + shares, rtol=1e-5)
    np.testing.assert_allclose([row["learning_rate"] for row in rows], 1e-3 + shares, rtol=1e-5)
    assert "hyperparameter/gamma" not in rows[0]


@pytest.mark.slow
def test_the_switch_is_a_shorthand_for_a_line_down_to_zero(tmp_path):
    by_switch = train(tmp_path / "switch", learning_rate=1e-3)
    by_schedule = train(tmp_path / "schedule", learning_rate="linear:1e-3:0")
    for a, b in zip(by_switch, by_schedule, strict=True):
        assert a["learning_rate"] == pytest.approx(b["learning_rate"], rel=1e-5)
        assert a["policy_loss"] == pytest.approx(b["policy_loss"], rel=1e-3, abs=1e-5)


def test_a_changed_schedule_of_one_form_compiles_nothing_new():
    programs = jax.jit(lambda algorithm: at(algorithm, np.float32(0.3)).entropy_coef)
    for start in (0.1, 0.2, 0.3):
        programs(as_arrays(ludus.PPO(entropy_coef=LinearSchedule(start, 0.0))))  # ty: ignore[invalid-argument-type]
    assert programs._cache_size() == 1


@pytest.mark.slow
@pytest.mark.requirement("S4.11")
def test_a_schedule_on_the_command_line_is_saved_as_it_was_typed_and_goes_on_after_a_resume(tmp_path, capsys):
    words = [
        "env=CartPole-v1", "num_envs=4", "algorithm.batch_size=128", "algorithm.minibatch_size=64", "verbose=false",
        "algorithm.entropy_coef=linear:0.01:0", "algorithm.learning_rate=warmup:0.1:cosine:3e-3:0", "preset=null",
        "eval_frequency=0", "eval_episodes_final=2", "record_behaviour=false",
    ]  # fmt: skip
    run = tmp_path / "run"
    assert main(["train", *words, "total_steps=512", f"run_dir={run}"]) == 0
    saved = read_config(run)["algorithm"]
    assert (saved["entropy_coef"], saved["learning_rate"]) == ("linear:0.01:0", "warmup:0.1:cosine:0.003:0")
    assert main(["resume", str(run), "total_steps=1024", "verbose=false"]) == 0
    rows = [row for row in read_journal(run) if row["kind"] == "train"]
    assert rows[-1]["hyperparameter/entropy_coef"] == pytest.approx(0.01 * (1 - 896 / 1024), rel=1e-5)
    assert ludus.load_policy(run).algorithm.entropy_coef == LinearSchedule(np.float32(0.01), np.float32(0.0))
    assert main(["train", *words, "algorithm.gamma=quick"]) == 2
    said = capsys.readouterr().err
    assert "algorithm.gamma=quick: must be a number, or a schedule over progress" in said and said.count("\n") == 1


@pytest.mark.slow
def test_sac_follows_schedules_too(tmp_path):
    sac = ludus.SAC(
        learning_rate=WarmupSchedule(0.5, 1e-3),  # ty: ignore[invalid-argument-type]
        alpha=PiecewiseSchedule((0.0, 1.0), (0.2, 0.1)),  # ty: ignore[invalid-argument-type]
        automatic_alpha=False,
        replay_size=512,
        learning_starts=32,
        batch_size=8,
        unroll_length=8,
        network=ludus.MLP((8,)),
    )
    settings = ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0, record_behaviour=False)
    trainer = ludus.Trainer(sac, ludus.make_env("Pendulum-v1", num_envs=4), settings, run_dir=tmp_path / "run")
    trainer.train(total_steps=320)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "train" and "alpha" in row]
    shares = np.array([row["steps"] - 32 for row in rows]) / 320
    np.testing.assert_allclose([row["alpha"] for row in rows], 0.2 - 0.1 * shares, rtol=1e-4)
    np.testing.assert_allclose([row["learning_rate"] for row in rows], 1e-3 * np.minimum(shares / 0.5, 1), rtol=1e-4)


def test_outside_of_training_an_algorithm_has_what_its_schedules_end_with():
    ended = at_end(as_arrays(ludus.PPO(entropy_coef="warmup:0.5:linear:0.01:0.002", gamma=0.9)))
    np.testing.assert_allclose([ended.entropy_coef, ended.gamma], [0.002, 0.9], rtol=1e-6)
    plain = as_arrays(ludus.PPO())
    assert at_end(plain) is plain
