"""Runs whose advantages come from branches: what is refused, and that they learn."""

import gymnasium
import numpy as np
import pytest
from chain import Chain

import ludus
from ludus.types import LudusError

BRANCHES = {"advantages": "monte_carlo", "batch_size": 64, "minibatch_size": 32}


class Endless(Chain):
    """A chain of which nobody says how long its episodes may become."""

    max_episode_steps = None


class Drifting(gymnasium.Env):
    """Shows something else whenever the same seed is played again, or draws from NumPy's shared generator."""

    observation_space = gymnasium.spaces.Box(-100.0, 100.0, (1,))
    action_space = gymnasium.spaces.Box(1.0, 2.0, (2,))

    def __init__(self, shares: bool):
        self.shares = shares

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = np.array([np.random.default_rng().normal() if not self.shares else 0.0], np.float32)
        return self.at.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        if self.shares:
            self.at = self.at + np.float32(np.random.normal())  # noqa: NPY002
        return self.at.copy(), 0.0, False, False, {}


@pytest.mark.requirement("S0.10", "S0.14")
@pytest.mark.parametrize(
    ("make", "options", "told"),
    [
        (lambda: ludus.make_env("jax:CartPole-v1", num_envs=4), {"advantages": "best"}, "must be gae or monte_carlo"),
        (lambda: ludus.make_env("jax:CartPole-v1", num_envs=4), {"branches": 0}, "algorithm.branches=0: must be at"),
        (lambda: ludus.make_env("jax:CartPole-v1", num_envs=4), {"branch_depth": 0}, "branch_depth=0: must be at"),
        (lambda: ludus.make_env(Endless(), num_envs=4), {}, "algorithm.branch_depth=null: .* names no longest episode"),
        (lambda: ludus.make_env(Drifting, num_envs=4, shares=False), {}, "show something else the second time"),
        (lambda: ludus.make_env(Drifting, num_envs=4, shares=True), {}, "draws from np.random or random"),
        (lambda: ludus.make_env("envpool:CartPole-v1", num_envs=4), {}, "cannot be cloned in the midst of an episode"),
    ],
)
def test_what_has_no_branches_is_refused_in_one_line_before_anything_compiles(make, options, told):
    with pytest.raises(LudusError, match=told) as error:
        ludus.Trainer(ludus.PPO(**{**BRANCHES, **options}), make(), ludus.Settings(verbose=False))
    assert "\n" not in str(error.value)


def test_an_agent_has_no_environment_to_branch_off_from():
    spaces = ludus.spaces.Box(-1.0, 1.0, (2,)), ludus.spaces.Discrete(2)
    with pytest.raises(LudusError, match=r"advantages=monte_carlo: .* use ludus.Trainer") as error:
        ludus.Agent(ludus.PPO(**BRANCHES), *spaces)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.requirement("S0.14", "S0.15", "S0.22")
def test_cartpole_is_learnt_from_branches():
    ppo = ludus.PPO(
        **{**BRANCHES, "batch_size": 512, "minibatch_size": 128}, branches=4, epochs_per_update=4,
        learning_rate=1e-3,
    )  # fmt: skip
    env = ludus.make_env("jax:CartPole-v1", num_envs=8)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(seed=0, verbose=False, eval_episodes_final=20))
    result = trainer.train(total_steps=10_240)
    assert result.evaluation.returns.mean() >= 150
