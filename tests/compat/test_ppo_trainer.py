"""`PPOAgent`: by dimensions, with the core behind it."""

import numpy as np
import pytest

import ludus
from ludus.compat.ppo_trainer import PPOAgent
from ludus.spaces import Discrete

CREATING = """
agent = PPOAgent(observation_dim=4, action_dim=2)
"""


@pytest.mark.requirement("S1.1")
def test_the_founding_line_makes_an_agent_with_the_tables_defaults():
    names = {"PPOAgent": PPOAgent}
    exec(CREATING, names)
    agent = names["agent"]
    ppo = agent.algorithm
    assert (ppo.learning_rate, ppo.clip_epsilon, ppo.gamma, ppo.gae_lambda) == (3e-4, 0.2, 0.99, 0.95)
    assert (ppo.entropy_coef, ppo.value_coef, ppo.max_grad_norm) == (0.01, 0.5, 0.5)
    assert (ppo.epochs_per_update, ppo.batch_size, ppo.minibatch_size) == (10, 64, 64)
    assert agent.agent.spec.observation_space.shape == (4,) and agent.agent.spec.action_space == Discrete(2)
    with pytest.raises(ludus.LudusError, match="action_dim=0: must be an integer of at least 1"):
        PPOAgent(4, 0)


@pytest.mark.requirement("S1.1")
def test_it_acts_learns_saves_and_loads(tmp_path):
    agent, rng = PPOAgent(4, 2, epochs_per_update=2), np.random.default_rng(0)
    learnt = []
    for t in range(130):
        action = agent.select_action(rng.normal(size=4))
        assert type(action) is int and action in (0, 1)
        agent.observe(rng.normal(size=4), 1.0, t % 9 == 0, False)
        learnt += [agent.update()]
    assert [bool(metrics) for metrics in learnt].count(True) == 2
    assert agent.update(partial=True)["updates"] == 2
    agent.save_policy_net(tmp_path / "actor")
    agent.save_value_net(tmp_path / "critic")
    other = PPOAgent(4, 2, seed=7)
    other.load_policy_net(tmp_path / "actor")
    other.load_value_net(tmp_path / "critic")
    states = rng.normal(size=(20, 4))
    assert [agent.select_action(x, True) for x in states] == [other.select_action(x, True) for x in states]
    np.testing.assert_array_equal(agent.agent.critic(states), other.agent.critic(states))


@pytest.mark.requirement("S3.3")
def test_it_samples_or_takes_the_best_action():
    agent = PPOAgent(4, 2)
    obs = np.zeros(4)
    assert {agent.select_action(obs) for _ in range(60)} == {0, 1}
    assert len({agent.select_action(obs, deterministic=True) for _ in range(5)}) == 1
