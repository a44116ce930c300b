"""The PPO trainer's doors, with the core behind them."""

import inspect
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import nnx

import ludus
from ludus.compat import ppo_agent, ppo_trainer
from ludus.compat.ppo_trainer import (
    ActorNetwork,
    CartPoleWrapper,
    CriticNetwork,
    PPOAgent,
    PPONetwork,
    PPOTrainer,
    evaluate_action,
    get_entropy,
)
from ludus.runs.journal import read_journal
from ludus.spaces import Discrete

pytestmark = pytest.mark.slow

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


EXAMPLES = {
    "training": """
# Create agent and environment
agent = PPOAgent(observation_dim=4, action_dim=2)
env = CartPoleWrapper()

# Create trainer
trainer = PPOTrainer(
    agent=agent,
    env=env,
    max_episodes=1000,
    target_reward=195.0,
    enable_mlflow=True
)

# Run training
results = trainer.train()
""",
    "callback": """
def custom_callback(metrics):
    episode = metrics['episode']
    step_metrics = metrics['step_metrics']

    if episode % 100 == 0:
        print(f"Episode {episode}: Reward = {step_metrics['avg_reward']:.2f}")

results = trainer.train(callback=custom_callback)
""",
    "evaluation": """
# Load trained agent and evaluate
eval_metrics = trainer.evaluate(num_episodes=100)
print(f"Evaluation reward: {eval_metrics['avg_reward']:.2f} ± {eval_metrics['std_reward']:.2f}")
""",
}
IMPORTS = "from ludus.compat.ppo_trainer import CartPoleWrapper, PPOAgent, PPOTrainer\n"
RESULTS = {
    "total_episodes", "total_steps", "training_time", "final_avg_reward", "final_std_reward", "best_avg_reward",
    "converged", "episode_rewards", "episode_lengths", "eval_rewards", "losses",
}  # fmt: skip


def small(tmp_path, **settings) -> PPOTrainer:
    settings = {"max_episodes": 30, "eval_frequency": 10, "eval_episodes": 2, "enable_mlflow": False, **settings}
    return PPOTrainer(PPOAgent(4, 2), CartPoleWrapper(), run_dir=tmp_path / "run", **settings)


@pytest.mark.requirement("S1.1", "S1.19", "S1.20", "S1.21", "S1.23", "S1.31")
def test_the_founding_examples_run_in_order_but_for_their_imports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    names = {}
    exec(IMPORTS + EXAMPLES["training"], names)
    results = names["results"]
    assert results.keys() == RESULTS
    assert results["converged"] and results["best_avg_reward"] >= 195 and results["final_avg_reward"] >= 195
    assert len(results["episode_rewards"]) == len(results["episode_lengths"]) == results["total_episodes"] < 1000
    exec(EXAMPLES["callback"], names)
    first, results = results, names["results"]
    more = results["total_episodes"] - first["total_episodes"]
    assert 110 <= more <= 1000 and results["episode_rewards"][:-more] == first["episode_rewards"]
    assert results["converged"] and results["final_avg_reward"] >= 195
    told = [int(number) for number in re.findall(r"^Episode (\d+): Reward = \d+\.\d\d$", capsys.readouterr().out, re.M)]
    assert told == [n for n in range(first["total_episodes"] + 1, results["total_episodes"] + 1) if n % 100 == 0]
    exec(EXAMPLES["evaluation"], names)
    assert re.fullmatch(r"Evaluation reward: \d+\.\d\d ± \d+\.\d\d\n", capsys.readouterr().out)
    assert names["eval_metrics"]["avg_reward"] == results["final_avg_reward"]
    assert names["eval_metrics"].keys() == {"avg_reward", "std_reward", "max_reward", "min_reward", "avg_length"}
    assert [path.name[:8] for path in (tmp_path / "runs").iterdir() if (path / "run.json").exists()] == ["ppo_run_"]
    assert (tmp_path / "runs" / "mlflow.db").exists() == (ppo_trainer.find_spec("mlflow") is not None)


@pytest.mark.requirement("S1.27")
def test_without_mlflow_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ppo_trainer, "find_spec", lambda name: None)
    PPOTrainer(PPOAgent(4, 2), CartPoleWrapper(), run_dir=tmp_path / "run")
    assert capsys.readouterr().err.count("MLflow is not installed") == 1


@pytest.mark.requirement("S1.1", "S1.23")
def test_the_founding_callback_hears_of_every_episode(tmp_path, capsys):
    names = {"trainer": small(tmp_path, max_episodes=120)}
    exec(EXAMPLES["callback"], names)
    assert re.search(r"^Episode 100: Reward = \d+\.\d\d$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.requirement("S1.19")
def test_what_is_evaluated_and_played_is_the_agent(tmp_path):
    trained = small(tmp_path, max_episodes=100)
    trained.train()
    wanted = trained.evaluate(20)
    other = small(tmp_path / "other")
    fresh, episode = other.evaluate(20), other.collect_episode()
    assert fresh["avg_reward"] < wanted["avg_reward"]
    other.agent.agent.learner = trained.agent.agent.learner
    assert other.evaluate(20) == wanted
    assert not np.array_equal(other.collect_episode()["log_probs"][:1], episode["log_probs"][:1])


@pytest.mark.requirement("S1.19", "S1.22", "S3.31")
def test_a_trained_agent_is_loaded_and_evaluated(tmp_path):
    trained = small(tmp_path, max_episodes=60)
    trained.train()
    agent = PPOAgent(observation_dim=4, action_dim=2, seed=7)
    trainer = PPOTrainer(agent, CartPoleWrapper(), enable_mlflow=False, run_dir=tmp_path / "other", seed=42)
    agent.load_policy_net(tmp_path / "run" / "policies" / "final_actor.safetensors")
    agent.load_value_net(tmp_path / "run" / "policies" / "final_critic.safetensors")
    assert trainer.evaluate(num_episodes=20) == trained.evaluate(num_episodes=20)
    fresh = PPOAgent(4, 2, seed=8)  # which has met no environment
    fresh.load_policy_net(tmp_path / "run" / "policies" / "final_actor")
    states = np.random.default_rng(0).normal(size=(20, 4))
    assert [fresh.select_action(x, True) for x in states] == [agent.select_action(x, True) for x in states]
    assert ludus.evaluate(ludus.load_policy(fresh.save_policy_net(tmp_path / "net")), ludus.make_env("CartPole-v1"), 5)


@pytest.mark.requirement("S1.20")
def test_a_run_that_converged_leaves_a_policy_that_has(tmp_path):
    agent = PPOAgent(4, 2, seed=3)  # when its window first holds the target, it plays for 133 steps
    trainer = PPOTrainer(agent, CartPoleWrapper(), enable_mlflow=False, run_dir=tmp_path / "run")
    results = trainer.train()
    assert results["converged"] and results["final_avg_reward"] >= 195
    assert trainer.evaluate(100)["avg_reward"] == results["final_avg_reward"]


@pytest.mark.requirement("S1.24", "S1.33")
def test_log_frequency_one_prints_every_episode(tmp_path, capsys):
    results = small(tmp_path, log_frequency=1).train()
    lines = re.findall(r"^episode (\d+): reward", capsys.readouterr().err, re.MULTILINE)
    assert lines == [str(n + 1) for n in range(results["total_episodes"])]


@pytest.mark.requirement("S1.12", "S0.12")
def test_an_episode_is_equal_columns_with_true_successors(tmp_path):
    data = small(tmp_path).collect_episode()
    assert all(isinstance(column, jax.Array) for column in data.values())
    keys = {"observations", "actions", "rewards", "next_observations", "dones", "log_probs", "values"}
    assert keys <= data.keys()
    assert {len(column) for column in data.values()} == {len(data["rewards"])}
    np.testing.assert_array_equal(data["next_observations"][:-1], data["observations"][1:])
    assert data["dones"].tolist() == [False] * (len(data["dones"]) - 1) + [True]
    assert not np.array_equal(data["next_observations"][-1], data["observations"][0])


@pytest.mark.requirement("S1.15", "S1.17")
def test_limits_and_batch_size_are_honoured(tmp_path):
    trainer = small(tmp_path, max_steps_per_episode=15)
    results = trainer.train()
    assert max(results["episode_lengths"]) <= 15 and results["total_episodes"] == 30
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    sizes = [after["steps"] - before["steps"] for before, after in itertools.pairwise(rows)]
    assert set(sizes[:-1]) == {64} and 0 < sizes[-1] <= 64, "the last is cut where the episodes are enough"


@pytest.mark.requirement("S1.16", "S1.17", "S1.29")
@pytest.mark.parametrize("num_envs", [1, 4])
def test_an_update_may_follow_each_episode(tmp_path, num_envs):
    episodes = {"collect": "episodes", "num_envs": num_envs, "max_episodes": 28, "max_steps_per_episode": 100}
    results = small(tmp_path, **episodes, epochs_per_update=2).train()
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert [len(row["episode_lengths"]) for row in rows] == [num_envs] * (28 // num_envs)
    assert all(row["steps"] == sum(results["episode_lengths"][: row["episodes"]]) for row in rows)
    updates = [2 * -(-sum(row["episode_lengths"]) // 64) for row in rows]  # whole episodes, the last minibatch ragged
    assert [row["updates"] for row in rows] == list(itertools.accumulate(updates))


@pytest.mark.requirement("S1.29")
def test_several_environments_are_played_side_by_side(tmp_path):
    trainer = small(tmp_path, num_envs=8)
    trainer.train()
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert trainer.trainer.env.num_envs == 8 and rows[0]["steps"] == 64
    assert trainer.evaluate(5)["avg_reward"] > 0 and len(trainer.collect_episode()["rewards"]) > 0
    assert trainer.agent.agent.spec.num_envs == 1 and isinstance(trainer.agent.select_action(np.zeros(4)), int)
    with pytest.raises(ludus.LudusError, match=r"num_envs=7: must divide algorithm.batch_size=64"):
        small(tmp_path / "other", num_envs=7)


@pytest.mark.requirement("S1.14", "S1.16")
def test_a_smaller_batch_alone_is_enough(tmp_path):
    assert PPOAgent(4, 2).algorithm.minibatch_size == 64
    for batch, minibatch in ((32, 32), (96, 64), (2048, 64)):
        assert PPOAgent(4, 2, batch_size=batch).algorithm.minibatch_size == minibatch
        given = PPOTrainer(PPOAgent(4, 2), CartPoleWrapper(), enable_mlflow=False, batch_size=batch)
        assert given.trainer.algorithm.minibatch_size == minibatch
    with pytest.raises(ludus.LudusError, match=r"minibatch_size=64: must be at most algorithm.batch_size=32"):
        PPOAgent(4, 2, batch_size=32, minibatch_size=64)
    with pytest.raises(ludus.LudusError, match="batch_size=0"):
        PPOAgent(4, 2, batch_size=0)


@pytest.mark.requirement("S1.14")
def test_the_trainer_takes_every_parameter_of_the_table(tmp_path):
    given = {
        "learning_rate": 1e-3, "clip_epsilon": 0.1, "gamma": 0.9, "gae_lambda": 0.8, "entropy_coef": 0.02,
        "value_coef": 0.7, "max_grad_norm": 1.0, "epochs_per_update": 3, "batch_size": 128, "minibatch_size": 32,
    }  # fmt: skip
    trainer = small(tmp_path, **given, max_episodes=2)
    assert {name: getattr(trainer.trainer.algorithm, name) for name in given} == given
    trainer.train()
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert {name: config["algorithm"][name] for name in given} == given
    with pytest.raises(ludus.LudusError, match="learning_rat: is no setting, nor one of the hyperparameters"):
        small(tmp_path / "other", learning_rat=1e-3)


@pytest.mark.requirement("S1.5")
def test_the_value_loss_is_the_plain_squared_error(tmp_path):
    rng = np.random.default_rng(0)
    agent = PPOAgent(4, 2, entropy_coef=0.0, value_coef=0.5, max_grad_norm=1e9, epochs_per_update=1)
    obs, returns = rng.normal(size=(64, 4)).astype(np.float32), rng.normal(size=64).astype(np.float32)
    critic = agent.network.critic
    expected = float(np.square(np.asarray(critic(obs)) - returns).mean())
    batch = obs, rng.integers(0, 2, 64), np.full(64, np.log(0.5), np.float32), np.zeros(64, np.float32), returns
    _, _, metrics = agent.update_step(agent.network_params, agent.optimizer_state, *batch)
    assert metrics["value_loss"] == pytest.approx(expected, rel=1e-5)
    # With advantages of 0 the gradient is that of 0.5 (V - R)^2; that of half the loss would have half the norm.
    graph, weights = nnx.split(critic)
    slope = jax.grad(lambda w: 0.5 * jnp.square(nnx.merge(graph, w)(obs) - returns).mean())(weights)
    norm = np.sqrt(sum(float(jnp.square(x).sum()) for x in jax.tree.leaves(slope)))
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    results = small(tmp_path, max_episodes=3).train()
    row = next(row for row in read_journal(tmp_path / "run") if row["kind"] == "train")
    assert row["total_loss"] == pytest.approx(row["policy_loss"] + 0.5 * row["value_loss"] - 0.01 * row["entropy"])
    assert results["losses"]["value_loss"][0] == row["value_loss"]


@pytest.mark.requirement("S1.2", "S1.9")
def test_the_networks_are_an_actor_and_a_critic():
    network, obs = PPONetwork(observation_dim=4, action_dim=2), np.zeros((5, 4), np.float32)
    logits, values = network(obs)
    assert logits.shape == (5, 2) and values.shape == (5,)
    np.testing.assert_array_equal(network.actor(obs), logits)
    assert ActorNetwork(4, 3, (8,))(obs[0]).shape == (3,) and CriticNetwork(4)(obs[0]).shape == ()
    actions = jnp.asarray([0, 1, 1, 0, 1])
    log_probs = jax.vmap(evaluate_action)(logits, actions)
    np.testing.assert_allclose(log_probs, np.asarray(jax.nn.log_softmax(logits))[np.arange(5), actions], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(get_entropy)(logits), np.log(2), rtol=1e-3)
    agent = PPOAgent(4, 2, normalize_observations=False)
    shown = np.random.default_rng(0).normal(size=4).astype(np.float32)
    agent.select_action(shown)
    logits, value = agent.network(shown)
    assert value == pytest.approx(float(agent.agent.critic(shown)), rel=1e-5)
    assert int(jnp.argmax(logits)) == agent.select_action(shown, deterministic=True)


@pytest.mark.requirement("S1.10", "S1.13")
def test_update_step_is_one_compiled_gradient_step_that_changes_nothing_by_itself():
    agent, rng = PPOAgent(4, 2, learning_rate=1e-2), np.random.default_rng(0)
    obs = rng.normal(size=(64, 4))
    actions = (obs[:, 0] > 0).astype(np.int32)
    parameters, optimizer = start = agent.network_params, agent.optimizer_state
    compiled = ppo_agent._gradient_step._cache_size()
    for _ in range(20):
        log_probs = jax.vmap(evaluate_action)(agent.network.actor(obs), actions)
        advantages = rng.normal(size=64)
        parameters, optimizer, metrics = agent.update_step(
            parameters, optimizer, obs, actions, log_probs, advantages, np.zeros(64)
        )
    assert ppo_agent._gradient_step._cache_size() <= compiled + 1
    assert {"policy_loss", "value_loss", "entropy_loss", "kl_divergence", "clipfrac", "grad_norm"} <= metrics.keys()
    jax.tree.map(np.testing.assert_array_equal, (agent.network_params, agent.optimizer_state), start)
    agent.network_params, agent.optimizer_state = parameters, optimizer
    jax.tree.map(np.testing.assert_array_equal, agent.network_params, parameters)
    assert int(agent.optimizer_state.count) == 20


@pytest.mark.requirement("S1.14")
def test_all_founding_parameters_have_their_defaults():
    defaults = {
        "max_episodes": 1000, "max_steps_per_episode": 500, "target_reward": 195.0, "convergence_window": 100,
        "early_stopping_patience": 10, "eval_frequency": 50, "eval_episodes": 10, "learning_rate": 3e-4,
        "clip_epsilon": 0.2, "gamma": 0.99, "gae_lambda": 0.95, "entropy_coef": 0.01, "value_coef": 0.5,
        "max_grad_norm": 0.5, "epochs_per_update": 10, "batch_size": 64, "minibatch_size": 64,
    }  # fmt: skip
    found = {}
    for kind in (PPOTrainer, PPOAgent):
        found |= {name: p.default for name, p in inspect.signature(kind).parameters.items() if name in defaults}
    assert found.pop("minibatch_size") is None, "it follows the batch size"
    assert found | {"minibatch_size": PPOAgent(4, 2).algorithm.minibatch_size} == defaults


def test_what_was_learnt_is_the_agents_and_training_goes_on_from_it(tmp_path):
    def parameters(policy) -> np.ndarray:
        return np.concatenate([np.ravel(leaf) for leaf in policy.state.parameters])

    trainer = small(tmp_path)
    fresh = parameters(trainer.agent.agent.policy)
    np.testing.assert_array_equal(fresh, parameters(trainer.trainer.policy))
    trainer.train()
    learnt = parameters(trainer.agent.agent.policy)
    assert not np.array_equal(fresh, learnt)
    np.testing.assert_array_equal(learnt, parameters(trainer.trainer.policy))
    again = PPOTrainer(trainer.agent, CartPoleWrapper(), max_episodes=1, enable_mlflow=False, run_dir=tmp_path / "more")
    again.train()
    more = parameters(trainer.agent.agent.policy)
    assert 0 < np.linalg.norm(more - learnt) < np.linalg.norm(more - fresh)


def test_normalisation_must_be_agreed_on(tmp_path):
    with pytest.raises(ludus.LudusError, match="normalize_observations=False of the environment"):
        PPOTrainer(PPOAgent(4, 2), CartPoleWrapper(normalize_observations=False), run_dir=tmp_path / "run")


def test_the_wrapper_is_a_loop_of_ones_own(tmp_path):
    env = CartPoleWrapper(max_episode_steps=7)
    assert (env.observation_dim, env.action_dim) == (4, 2)
    obs, _ = env.reset(seed=1)
    for number in range(7):
        successor, reward, terminated, truncated, _ = env.step(number % 2)
        assert reward == 1 and not np.array_equal(obs, successor)
        obs = successor
    assert truncated and not terminated
    env.close()
