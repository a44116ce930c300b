"""Learning on real environments, over several seeds, with the presets a user gets."""

import numpy as np
import pytest

import ludus
from ludus.spaces import Box
from ludus.training import config

pytestmark = pytest.mark.slow

SEEDS = range(3)


def final_return(seed: int, *overrides: str) -> float:
    parts = config.build(config.compose([*overrides, f"seed={seed}", "eval_frequency=0", "verbose=false"]))
    result = ludus.Trainer(parts.algorithm, parts.env, parts.settings).train(**parts.budget)
    parts.env.close()
    assert len(result.evaluation.returns) == 100
    return float(result.evaluation.returns.mean())


@pytest.mark.requirement("S1.31")
@pytest.mark.parametrize("env", ["jax:CartPole-v1", "gym:CartPole-v1"])
def test_cartpole_is_solved_by_every_seed(env):
    returns = [final_return(seed, f"env={env}") for seed in SEEDS]
    assert min(returns) >= 475, returns


@pytest.mark.requirement("S3.37")
def test_pendulum_is_solved_within_300k_steps_by_every_seed():
    assert config.compose(["env=Pendulum-v1"]).total_steps <= 300_000
    returns = [final_return(seed, "env=Pendulum-v1") for seed in range(3)]
    assert min(returns) >= -200, returns


def test_a_memory_makes_up_for_what_is_not_seen():
    """CartPole without its velocities: a network without memory cannot balance it for long, one with memory can."""

    class Blind(type(ludus.make_env("CartPole-v1").env)):
        observation_space = Box(-5.0, 5.0, (2,))

        def reset(self, key):
            state, obs = super().reset(key)
            return state, obs[::2]

        def step(self, state, action, key):
            state, step = super().step(state, action, key)
            return state, step._replace(obs=step.obs[::2])

    def reached(network) -> float:
        settings = {"batch_size": 2048, "minibatch_size": 512, "epochs_per_update": 4, "learning_rate": 3e-3}
        ppo = ludus.PPO(**settings, normalize_returns=True, network=network)
        trainer = ludus.Trainer(
            ppo, ludus.make_env(Blind(), num_envs=32), ludus.Settings(verbose=False, eval_frequency=0)
        )
        return float(np.mean(trainer.train(total_steps=204_800).evaluation.returns))

    assert reached(ludus.GRU()) >= 475
    assert reached(ludus.MLP()) < 150
