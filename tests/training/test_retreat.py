"""Signals and time limits are heeded inside long rollouts, updates and evaluations; what is left goes on exactly."""

import contextlib
import signal
import time

import gymnasium
import jax
import numpy as np
import pytest
from resume_runs import iterations, run, trainer

import ludus
from ludus.envs.native.probes import PROBES
from ludus.runtime.compilation import wait_for
from ludus.training.budget import Budget
from ludus.training.loop import Loop
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of
from ludus.types import Left, Watch

pytestmark = pytest.mark.slow

CASES = ["ppo gym", "sac gym workers", "ppo gym episodes", "ppo gym gru"]


@pytest.fixture
def impatient(monkeypatch):
    """Every iteration counts as long."""
    monkeypatch.setattr("ludus.training.retreat.LONG_SECONDS", 0.0)


def signal_at(env, count: int) -> None:
    """Let SIGTERM come in the midst of a rollout: with the n-th step from now."""
    step, taken = env.step, []

    def stepped(action):
        taken.append(None)
        if len(taken) == count:
            signal.raise_signal(signal.SIGTERM)
        return step(action)

    env.step = stepped


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Runs that nobody disturbed, by case."""
    made = {}

    def get(case: str):
        if case not in made:
            made[case] = tmp_path_factory.mktemp("straight") / "run"
            run(case, made[case], 5)
        return made[case]

    return get


def assert_equal(one, other) -> None:
    assert differences(state_of(one), state_of(other)) == []
    assert journal_of(one) == journal_of(other)


@pytest.mark.requirement("S2.21")
@pytest.mark.parametrize("case", CASES)
def test_a_signal_inside_a_rollout_is_heeded_and_the_run_goes_on_exactly(case, straight, tmp_path, impatient):
    made = trainer(case, tmp_path / "run")
    per_iteration = iterations(case, 1) // 4
    signal_at(made.env, 3 * per_iteration + per_iteration // 2)
    with contextlib.closing(made.env):
        result = made.train(total_steps=iterations(case, 5))
    assert (result.stopped_by, result.iterations) == ("SIGTERM", 3), "not one step more than was asked for"
    assert made.retreat.was_used
    resumed = ludus.Trainer.resume(tmp_path / "run", verbose=False)
    resumed.final_episodes = 0
    with contextlib.closing(resumed.env):
        resumed.train()
    assert_equal(straight(case), tmp_path / "run")


@pytest.mark.requirement("S2.21")
def test_the_same_process_can_go_on_as_well(straight, tmp_path, impatient):
    made = trainer("ppo gym", tmp_path / "run")
    signal_at(made.env, 3 * 16 + 7)
    with contextlib.closing(made.env):
        assert made.train(total_steps=iterations("ppo gym", 5)).iterations == 3
        assert made.train(total_steps=iterations("ppo gym", 5)).iterations == 5
    assert_equal(straight("ppo gym"), tmp_path / "run")


def test_a_run_that_was_left_in_its_first_rollout_begins_again(straight, tmp_path):
    made = trainer("ppo gym", tmp_path / "run")
    signal_at(made.env, 5)
    with contextlib.closing(made.env):
        assert made.train(total_steps=iterations("ppo gym", 5)).iterations == 0
    resumed = ludus.Trainer.resume(tmp_path / "run", verbose=False)
    resumed.final_episodes = 0
    with contextlib.closing(resumed.env):
        resumed.train()
    assert_equal(straight("ppo gym"), tmp_path / "run")


def test_short_iterations_are_finished(tmp_path):
    made = trainer("ppo gym", tmp_path / "run")
    signal_at(made.env, 3 * 16 + 7)
    with contextlib.closing(made.env):
        assert made.train(total_steps=iterations("ppo gym", 5)).iterations == 4
    assert not made.retreat.was_used


@pytest.mark.parametrize("case", ["ppo jax", "sac jax"])
def test_a_compiled_chunk_that_was_given_up_is_as_if_it_had_not_been(case, straight, tmp_path, impatient, monkeypatch):
    made = trainer(case, tmp_path / "run")
    run_chunk, chunks = Loop.__call__, []

    def left(loop, *chunk):
        made = run_chunk(loop, *chunk)  # which takes the state over
        chunks.append(chunk)
        if len(chunks) == 3:
            raise Left
        return made

    monkeypatch.setattr(Loop, "__call__", left)
    result = made.train(total_steps=iterations(case, 5))
    assert result.stopped_by == "max_seconds" and 0 < result.iterations < 5
    made.train(total_steps=iterations(case, 5))
    assert_equal(straight(case), tmp_path / "run")


def test_a_program_is_watched_while_it_runs():
    told = []

    def tell(what: str, done: int, total: int) -> None:
        told.append(what)
        if len(told) == 3:
            raise Left

    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 20_000, lambda i, x: jax.numpy.tanh(x @ x), x))
    running = slow(np.full((64, 64), 0.01, np.float32))
    with pytest.raises(Left):
        wait_for(running, Watch(tell), "updating")
    told.clear()
    wait_for(running, Watch(tell, expects_long=False), "updating")
    assert told == ["updating"]
    running.block_until_ready()


# --- time ---


class Slow(gymnasium.Env):
    """Takes its time; of two environments side by side, the second has episodes without an end."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, seconds: float = 0.02, endless: bool = False):
        self.seconds, self.t = seconds, 0
        self.is_endless, Slow.made = endless and Slow.made % 2 == 1, Slow.made + 1

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(self.seconds)
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == 5 and not self.is_endless, False, {}


def slow_trainer(batch_size: int, num_envs: int = 1, callback=None, **settings) -> ludus.Trainer:
    ppo = ludus.PPO(batch_size=batch_size, minibatch_size=batch_size, epochs_per_update=1)
    env = ludus.make_env(Slow, num_envs, num_workers=0, **settings.pop("env", {}))
    return ludus.Trainer(ppo, env, ludus.Settings(**{"eval_frequency": 0, "verbose": False} | settings))


def test_time_is_over_in_the_midst_of_a_rollout():
    result = slow_trainer(5000, eval_episodes_final=0).train(max_seconds=3)  # its rollout would take 100 s
    assert (result.stopped_by, result.iterations) == ("max_seconds", 0)
    assert 3 <= result.seconds < 50


def test_a_share_of_the_time_is_kept_for_the_final_evaluation_and_what_fits_is_told(monkeypatch):
    monkeypatch.setattr("ludus.training.budget.FINAL_SHARE", 0.4)
    slow_trainer(10, eval_episodes_final=1).train(total_steps=20)  # compiles what the other needs
    heard = []
    made = slow_trainer(10, eval_episodes_final=1000)
    result = made.train(max_seconds=6, callback=heard.append)
    evaluation = result.evaluation
    assert evaluation is not None and evaluation.asked == 1000
    assert 0 < len(evaluation.returns) < 1000 and set(evaluation.lengths.tolist()) == {5}
    assert f"{len(evaluation.returns)} episodes of 1000, for more there was no time" in str(evaluation)
    assert result.stopped_by == "max_seconds" and result.iterations and result.seconds < 30
    assert [metrics["iteration"] for metrics in heard] == list(range(1, result.iterations + 1))
    assert heard[-1]["eval_metrics"]["episodes"] == len(evaluation.returns), "the callback gets it too"
    assert all(metrics["eval_metrics"] is None for metrics in heard[:-1])


def test_of_a_batch_that_time_cut_short_the_short_episodes_do_not_count(capsys):
    made = slow_trainer(4, num_envs=2, env={"endless": True}, eval_episodes_final=10, verbose=True)
    result = made.train(max_seconds=5)
    assert result.evaluation is None and result.seconds < 30
    assert "not one batch of episodes came to its end" in capsys.readouterr().err


def test_time_ends_an_evaluation_of_jax_environments():
    class Endless(PROBES["endless-chain"]):
        max_episode_steps = None

    ppo = ludus.PPO(batch_size=64, minibatch_size=64)
    settings = ludus.Settings(eval_frequency=1, eval_max_steps=10**9, verbose=False)
    result = ludus.Trainer(ppo, ludus.make_env(Endless(), 4), settings).train(max_seconds=5)
    assert (result.stopped_by, result.evaluation) == ("max_seconds", None)
    assert result.seconds < 60


def test_the_final_evaluation_can_be_switched_off_and_made_short(tmp_path):
    made = slow_trainer(4, eval_episodes_final=0)
    assert made.train(total_steps=8).evaluation is None
    made = slow_trainer(4, eval_episodes_final=3, eval_max_steps=2)
    evaluation = made.train(total_steps=8).evaluation
    assert evaluation.lengths.tolist() == [2, 2, 2] and evaluation.num_cut == 3
    assert made.record.latest["eval_episodes_cut"] == 3


def test_the_share_that_is_kept():
    assert Budget(None, None, 100.0).training_seconds(is_evaluated=True) == pytest.approx(90)
    assert Budget(None, None, 100.0).training_seconds(is_evaluated=False) == 100
    assert Budget(10, None, None).training_seconds(is_evaluated=True) == np.inf


# --- what the final evaluation decides ---


@pytest.mark.requirement("S1.20")
@pytest.mark.requirement("S1.26")
@pytest.mark.parametrize("rule", ["none", "window", "interval", "plateau"])
@pytest.mark.parametrize(("target", "converged"), [(5.0, True), (5.5, False)])
def test_the_final_evaluation_is_judged_whatever_the_rule(rule, target, converged):
    options = ludus.ConvergenceOptions(rule=rule, target_return=target)
    made = slow_trainer(8, env={"seconds": 0.0}, eval_episodes_final=4, eval_frequency=100, convergence=options)
    result = made.train(total_steps=16)
    assert result.stopped_by == "total_steps"
    assert result.converged is converged


def test_a_callback_that_ended_the_run_hears_of_the_final_evaluation_too():
    heard = []

    def tell(metrics):
        heard.append(metrics["eval_metrics"])
        return False

    slow_trainer(8, env={"seconds": 0.0}, eval_episodes_final=4).train(total_steps=800, callback=tell)
    assert len(heard) == 2 and heard[0] is None and heard[1]["avg_reward"] == 5.0
