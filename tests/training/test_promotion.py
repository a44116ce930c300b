"""The gate before a champion."""

import numpy as np
import pytest

import ludus
from ludus.training.promotion import EPISODES, compare, judge

LUCK = np.random.default_rng(0).normal(0.0, 30.0, 100)


@pytest.mark.parametrize(
    ("shift", "noise", "is_better"),
    [(0.0, 0.0, False), (1.0, 0.0, True), (-1.0, 0.0, False), (1.0, 30.0, False), (20.0, 30.0, True)],
)
def test_a_difference_must_be_beyond_luck(shift, noise, is_better):
    champion = 100.0 + LUCK
    challenger = champion + shift + np.random.default_rng(1).normal(0.0, noise, 100) if noise else champion + shift
    verdict = judge(challenger, champion)
    assert verdict.is_better is is_better
    assert verdict.low <= verdict.difference <= verdict.high


def test_pairs_are_compared_and_not_two_means():
    """Episodes differ far more than the policies: unpaired, one point on thirty would drown."""
    verdict = judge(100.0 + LUCK + 1.0, 100.0 + LUCK)
    assert (verdict.low, verdict.high) == pytest.approx((1.0, 1.0))


def test_both_policies_meet_the_same_episodes():
    env = ludus.make_env("jax:CartPole-v1", num_envs=4)
    policy = ludus.Trainer(ludus.PPO(network=ludus.MLP((8,))), env, ludus.Settings(verbose=False)).policy
    verdict = compare(policy, policy, {"env": "jax:CartPole-v1", "env_options": {}, "num_envs": 4})
    assert (verdict.difference, verdict.low, verdict.high) == (0.0, 0.0, 0.0)
    assert verdict.episodes == EPISODES and verdict.challenger > 5
    with pytest.raises(ludus.LudusError, match="own code"):
        compare(policy, policy, {"env": "object:Mine", "num_envs": 4})
    with pytest.raises(ludus.LudusError, match="observation space"):
        compare(policy, policy, {"env": "jax:Acrobot-v1", "num_envs": 4})
