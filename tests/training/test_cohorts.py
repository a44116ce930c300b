"""Which episodes count: with many environments, the first to end are the shortest, and say nothing of the policy."""

import dataclasses
import itertools
from contextlib import closing

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from resume_runs import OFTEN

import ludus
from ludus.runs.journal import read_journal
from ludus.spaces import Box, Discrete
from ludus.training import cohorts
from ludus.training.state_arrays import differences
from ludus.training.stopping import ConvergenceOptions
from ludus.training.verify import journal_of, state_of
from ludus.types import EpisodeStats

pytestmark = pytest.mark.slow

TRUE_RETURN = -88.0


@dataclasses.dataclass(frozen=True)
class Costly(ludus.Environment):
    """Every step costs 1, and every episode lasts for 1 to 175 steps, as its start has drawn it."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return jax.random.randint(key, (), 1, 176), jnp.zeros(1)

    def step(self, state, action, key):
        return state - 1, ludus.Step(jnp.zeros(1), -1.0, state <= 1)


class CostlyHost(gymnasium.Env):
    """The same in Python."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 176))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), -1.0, self.left == 0, False, {}


def trainer(env, num_envs, steps, run_dir=None, **settings) -> ludus.Trainer:
    algorithm = ludus.PPO(
        learning_rate=0.0, batch_size=steps * num_envs, minibatch_size=steps * num_envs, epochs_per_update=1,
        network=ludus.MLP((4,)),
    )  # fmt: skip
    settings = {"eval_frequency": 0, "verbose": False, **settings}
    made = ludus.Trainer(algorithm, ludus.make_env(env, num_envs), ludus.Settings(**settings), run_dir=run_dir)
    made.final_episodes = 0
    return made


@pytest.mark.requirement("S1.20")
@pytest.mark.parametrize("num_envs", [256, 2048])
def test_short_episodes_do_not_make_a_policy_look_good(num_envs):
    rule = ConvergenceOptions("window", target_return=-40, window=100, patience=10)
    made = trainer(Costly(), num_envs, 10, convergence=rule)
    seen = []
    for iterations in range(10, 60, 10):
        result = made.train(total_steps=num_envs * 10 * iterations)
        assert result.stopped_by == "total_steps" and not result.converged
        seen.append(made.record.recent_return)
    assert seen[0] is None  # after 100 steps nothing counts, though more than half of the episodes have ended
    assert {value is None for value in seen[2:]} == {False}
    deviation = 50.5 / np.sqrt(num_envs)
    assert [value for value in seen if value] == pytest.approx([TRUE_RETURN] * 4, abs=5 * deviation)
    assert made.judge.convergence.best_average == pytest.approx(TRUE_RETURN, abs=5 * deviation)


@pytest.mark.requirement("S3.24")
@pytest.mark.parametrize("env", [Costly(), CostlyHost])
def test_the_row_says_what_counts_and_what_is_waited_for(env, tmp_path):
    made = trainer(env, 8, 25, run_dir=tmp_path / "run")
    with closing(made.env):
        made.train(total_steps=8 * 25 * 40)
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert rows[0]["episodes_running"] == 8 - rows[0]["episodes"] or rows[0]["episodes"]
    counted = np.cumsum([row["counted_episodes"] for row in rows])
    waiting = np.array([row["episodes_waiting"] for row in rows])
    assert (counted + waiting == [row["episodes"] for row in rows]).all()
    assert counted[-1] > 0.7 * rows[-1]["episodes"] and waiting.max() > 0
    lengths = [row["counted_length_mean"] for row in rows if row["counted_episodes"]]
    assert lengths == [-row["counted_return_mean"] for row in rows if row["counted_episodes"]]
    sums = sum(row["counted_episodes"] * row.get("counted_return_mean", 0) for row in rows)
    assert sums / counted[-1] == pytest.approx(TRUE_RETURN, abs=25)


@pytest.mark.requirement("S3.24")
def test_what_one_environment_has_ended_counts_at_once(tmp_path):
    made = trainer(Costly(), 1, 50, run_dir=tmp_path / "run")
    made.train(total_steps=3000)
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert {row["episodes_waiting"] for row in rows} == {0}
    for row in rows:
        assert row.get("counted_return_mean") == row.get("episode_return_mean")


def test_whole_episodes_count_at_once(tmp_path):
    made = trainer(Costly(), 8, 200, run_dir=tmp_path / "run", collect="episodes")
    made.train(max_episodes=24)
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert [(row["counted_episodes"], row["episodes_waiting"], row["episodes_running"]) for row in rows] == [
        (8, 0, 0)
    ] * 3


def by_hand(lengths: list[list[int]], steps: int) -> tuple[list[int], list[int]]:
    """Return, rollout by rollout, how many episodes of each environment have ended, and how many might count."""
    num_rollouts = min(map(sum, lengths)) // steps
    starts = [np.cumsum([0, *own]) for own in lengths]
    ended, might = [], []
    for now in range(steps, steps * num_rollouts + 1, steps):
        oldest = min(int(own[own <= now].max()) for own in starts)  # the start of the oldest that runs, or begins now
        ended.append(sum(int((own[1:] <= now).sum()) for own in starts))
        might.append(sum(int(((own[1:] <= now) & (own[:-1] < oldest)).sum()) for own in starts))
    return ended, might


@pytest.mark.parametrize("seed", range(4))
def test_an_episode_counts_only_when_all_that_began_before_it_or_with_it_have_ended(seed):
    rng, steps, n = np.random.default_rng(seed), 4**seed, 5
    lengths = [rng.integers(1, 30, 200).tolist() for _ in range(n)]
    ended, might = by_hand(lengths, steps)
    starts = [np.cumsum([0, *own]) for own in lengths]
    state, total = cohorts.begin(), 0
    for number in range(len(ended)):
        first = number * steps
        shown = np.zeros((steps, n), np.int32)
        for i, own in enumerate(starts):
            for start, stop in itertools.pairwise(own.tolist()):
                if first < stop <= first + steps:
                    shown[stop - 1 - first, i] = stop - start
        now = first + steps
        running = np.array([now - own[own <= now].max() for own in starts])
        returns = np.where(shown > 0, shown, np.nan).astype(np.float32)
        stats = EpisodeStats(0, 0, 0, 0, 0, 0, 0, returns=returns, lengths=shown, told=returns)
        state, counted = jax.jit(cohorts.count)(state, stats, shown > 0, None, running, np.float32(np.nan))
        total += int(counted.counted[0])
        assert total <= might[number] and total + int(counted.waiting) == ended[number]
    assert total > 0.8 * ended[-1]


def test_what_counts_is_the_same_when_a_run_is_resumed(tmp_path):
    for name, budget in (("long", 40), ("short", 21)):
        trainer(Costly(), 16, 8, run_dir=tmp_path / name, checkpoint=OFTEN).train(total_steps=16 * 8 * budget)
    resumed = ludus.Trainer.resume(
        tmp_path / "short", env=ludus.make_env(Costly(), 16), total_steps=16 * 8 * 40, verbose=False
    )
    resumed.final_episodes = 0
    resumed.train()
    assert differences(state_of(tmp_path / "long"), state_of(tmp_path / "short")) == []
    assert journal_of(tmp_path / "long") == journal_of(tmp_path / "short")


@dataclasses.dataclass(frozen=True)
class Penny(ludus.Environment):
    """Pays a hundredth in each of 5,000 steps."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    max_episode_steps = 5_000

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, state, action, key):
        return state, ludus.Step(jnp.zeros(1), 0.01, jnp.asarray(False))


class PennyHost(CostlyHost):
    """The same in Python."""

    steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 0.01, False, self.steps == 5_000, {}


@pytest.mark.requirement("S2.18")
@pytest.mark.parametrize("env", [Penny(), PennyHost])
def test_many_small_rewards_come_to_what_they_are(env):
    made = trainer(env, 1, 1_250)
    with closing(made.env):
        made.train(total_steps=5_000)
        assert made.record.latest["episode_return_mean"] == 50.0
        assert made.evaluate(1).returns.tolist() == [50.0]
