"""`PPOClip`: the kit's names, with the core behind them."""

import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from oracles import flat

import ludus
from ludus.compat.ppo_kit import OnPolicyTrainer, PPOClip, RolloutBuffer, TrajectoryBuffer
from ludus.runs.journal import read_journal
from ludus.spaces import Box

pytestmark = pytest.mark.slow

SMALL = {"batch_size": 16, "threshold_rollout_length": 40, "max_episode_len": 20, "update_epochs": 2}
SAVING = """
agent = PPOClip()
agent.save_policy_net(path_for_policy_model)
agent.save_value_net(path_for_value_model)
"""


def drive(agent: PPOClip, rollouts: int, lengths=(7, 13, 20)) -> list[tuple[int, dict]]:
    """A made-up world with episodes of these lengths; what each update saw and said."""
    rng, learnt, state, t, episode = np.random.default_rng(0), [], np.zeros(3), 0, 0
    while len(learnt) < rollouts:
        action, value, log_prob = agent.select_action(state)
        assert np.isscalar(value) and np.isscalar(log_prob) and (np.abs(action) <= 2).all()
        t += 1
        over = t == lengths[episode % len(lengths)]
        state = rng.normal(size=3)
        agent.observe(state, rng.normal(), over and episode % 2 == 0, over and episode % 2 == 1)
        if over:
            t, episode = 0, episode + 1
        recorded = agent.agent.recorded
        if metrics := agent.update():
            learnt.append((recorded, metrics))
    return learnt


def built(**changes) -> PPOClip:
    agent = PPOClip(**(SMALL | changes))
    agent.build(Box(-1.0, 1.0, (3,)), Box(-2.0, 2.0, (1,)))
    return agent


@pytest.mark.requirement("S3.1")
def test_agent_and_buffers_come_from_one_door():
    import ludus.compat.ppo_kit as door

    assert {"PPOClip", "Buffer", "TrajectoryBuffer", "RolloutBuffer"} <= set(door.__all__)
    assert not set(door.__all__) & set(ludus.__all__), "doors are not public names of ludus"


@pytest.mark.requirement("S3.2")
def test_the_founding_snippet_is_one_clear_error_until_an_environment_was_met(tmp_path, monkeypatch):
    names = {"path_for_policy_model": tmp_path / "actor.pth", "path_for_value_model": tmp_path / "critic.pth"}
    with pytest.raises(ludus.LudusError, match=r"PPOClip: not built yet, since it has met no environment") as error:
        exec(SAVING, {"PPOClip": PPOClip, **names})
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())
    monkeypatch.setattr(PPOClip.__init__, "__defaults__", (3, 1, *PPOClip.__init__.__defaults__[2:]))
    exec(SAVING, {"PPOClip": PPOClip, **names})
    assert {path.name for path in tmp_path.iterdir()} >= {"actor.pth", "critic.pth"}


@pytest.mark.requirement("S3.2")
def test_without_arguments_it_has_the_kits_defaults_and_no_networks():
    agent = PPOClip()
    assert not agent.is_built
    ppo = agent.algorithm
    assert (ppo.clip_epsilon, ppo.value_clip_epsilon, ppo.target_kl) == (0.2, 0.2, 0.01)
    assert (ppo.gamma, ppo.gae_lambda, ppo.learning_rate, ppo.epochs_per_update) == (0.99, 0.95, 3e-4, 10)
    assert ppo.network == ludus.MLP((64, 64), "relu") and ppo.minibatch_size == 64
    for call in (lambda: agent.select_action(np.zeros(3)), agent.update, lambda: agent.load_policy_net("x")):
        with pytest.raises(ludus.LudusError, match="not built yet"):
            call()
    assert PPOClip(state_dim=3, action_dim=1).is_built
    with pytest.raises(ludus.LudusError, match="state_dim=3, action_dim=None: give both or neither"):
        PPOClip(3)


@pytest.mark.requirement("S3.3")
def test_select_action_samples_or_takes_the_best_one():
    agent, state = built(), np.full(3, 0.5)
    samples = {float(agent.select_action(state)[0][0]) for _ in range(20)}
    best = [agent.select_action(state, deterministic=True) for _ in range(3)]
    assert len(samples) > 10 and len({float(action[0]) for action, _, _ in best}) == 1
    action, value, log_prob = agent.select_action(state)
    assert value == pytest.approx(float(agent.agent.critic(state)))
    np.testing.assert_allclose(action, 2 * np.clip(agent.sample, -1, 1), atol=1e-6)
    policy = agent.agent.policy
    distribution = policy.algorithm.distribution(policy.state, (), state[None].astype(np.float32))[1]
    assert log_prob == pytest.approx(float(distribution.log_prob(agent.sample[None])[0]), abs=1e-6)


@pytest.mark.requirement("S3.12")
@pytest.mark.requirement("S3.13")
def test_it_learns_from_whole_trajectories_of_at_least_the_threshold():
    learnt = drive(built(target_kl=None), rollouts=4)
    assert [length for length, _ in learnt] == [40, 40, 40, 40], "7 + 13 + 20 steps"
    assert [metrics["updates"] for _, metrics in learnt] == [6] * 4, "2 epochs of batches of 16, 16 and 8"
    learnt = drive(built(target_kl=None), rollouts=3, lengths=(13,))
    assert [length for length, _ in learnt] == [52] * 3, "the last trajectory is whole, so there are more than 40"
    learnt = drive(built(target_kl=None), rollouts=2, lengths=(1000,))
    assert [length for length, _ in learnt] == [64, 64], "an episode that never ends is cut where there is no more room"


def test_learning_from_a_buffer_is_learning_from_what_was_observed():
    by_buffer, by_observing = built(target_kl=None, batch_size=64), built(target_kl=None, batch_size=64)
    rollout, rng = RolloutBuffer(threshold_rollout_length=40), np.random.default_rng(0)
    while not rollout.is_full:
        trajectory, state = TrajectoryBuffer(), rng.normal(size=3)
        for t in range(10):
            action, value, log_prob = by_buffer.select_action(state)
            sample = by_buffer.sample.copy()
            assert by_observing.select_action(state)[0] == action
            next_state, reward, over = rng.normal(size=3), rng.normal(), t == 9
            trajectory.push(state, action, reward, next_state, over, False, value, log_prob, sample)
            by_observing.observe(next_state, reward, over, False)
            state = next_state
        trajectory.finish()
        rollout.concat(trajectory)
    metrics, expected = by_buffer.update_with_rollout(rollout), by_observing.update()
    assert metrics["updates"] == expected["updates"] == 2
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    states = by_buffer.agent._state, by_observing.agent._state
    np.testing.assert_allclose(*(flat(state.parameters) for state in states), atol=1e-5)


def test_actor_and_critic_may_have_learning_rates_of_their_own(tmp_path):
    agent = built(actor_lr=0.0, critic_lr=1e-3)
    names, before = agent.agent._state.network.names, [np.array(p) for p in agent.agent._state.parameters]
    drive(agent, rollouts=1)
    moved = {name for name, a, b in zip(names, before, agent.agent._state.parameters, strict=True) if (a != b).any()}
    assert moved and all("critic" in name for name in moved)
    assert ludus.load_policy(agent.save_policy_net(tmp_path / "actor")), "no optimiser is needed to act"


@pytest.mark.requirement("S3.31")
def test_nets_are_saved_and_loaded_by_the_kits_names(tmp_path):
    old, new = built(seed=1), built(seed=2)
    drive(old, rollouts=2)
    old.save_policy_net(tmp_path / "final_actor.pth")
    old.save_value_net(tmp_path / "final_critic.pth")
    assert {"final_actor.pth", "final_critic.pth"} <= {path.name for path in tmp_path.iterdir()}
    new.load_policy_net(tmp_path / "final_actor")
    new.load_value_net(tmp_path / "final_critic.pth")
    for state in np.random.default_rng(0).uniform(-1, 1, (5, 3)):
        (action, value, _), (same, equal, _) = (a.select_action(state, deterministic=True) for a in (old, new))
        assert action == same and value == equal


@pytest.mark.requirement("S3.31")
def test_an_agent_of_bare_lengths_takes_the_bounds_of_what_it_loads_or_meets(tmp_path):
    old, loaded, met = PPOClip(seed=1), PPOClip(3, 1, seed=2), PPOClip(3, 1, seed=1)
    old.build(Box(-8.0, 8.0, (3,)), Box(-2.0, 2.0, (1,)))
    old.save_policy_net(tmp_path / "final_actor")
    loaded.load_policy_net(tmp_path / "final_actor")
    OnPolicyTrainer("Pendulum-v1", met, run_dir=tmp_path / "run")
    state = np.full(3, 0.5)
    for agent in (loaded, met):
        assert agent.agent.spec.action_space == Box(-2.0, 2.0, (1,))
        assert agent.select_action(state, True)[0] == old.select_action(state, True)[0]
    with pytest.raises(ludus.LudusError, match="observation_space is Box"):
        OnPolicyTrainer("CartPole-v1", met, run_dir=tmp_path / "other")


def test_a_device_that_jax_does_not_run_on_is_refused():
    assert PPOClip(device="cpu")
    with pytest.raises(ludus.LudusError, match="device=cuda: JAX runs on cpu"):
        PPOClip(device="cuda")


def test_it_meets_a_gymnasium_environment():
    env = gymnasium.make("Pendulum-v1")
    agent = PPOClip(**SMALL)
    agent.build(env.observation_space, env.action_space)
    action, *_ = agent.select_action(env.reset(seed=0)[0])
    assert env.action_space.contains(action)
    env.close()


def test_the_doors_page_and_module_say_nothing_that_is_not_there():
    import ludus.compat.ppo_kit as door

    named = set(re.findall(r"agent\.(\w+)\(", door.__doc__))
    assert named and all(hasattr(PPOClip, name) for name in named)
    assert Path(door.__file__).stat().st_size < 12_000, "two doors are thin"


SECTIONS = {
    "ROLLOUT STATISTICS": [
        "mean_ep_len", "mean_ep_return", "mean_reward", "mean_clipped_ratio", "approx_kl", "rollout_len", "time_elapsed"
    ],
    "RECENT N EPISODES": ["mean_ep_len", "mean_ep_return", "success_rate"],
    "TRAINER STATISTICS": ["episodes_count", "timesteps_count", "rollouts_count", "total_timesteps", "clip_range"],
}  # fmt: skip
"""The log as its document shows it."""


def blocks(text: str) -> list[dict[str, dict[str, str]]]:
    """Take the log apart, which must hold nothing between its blocks."""
    rule, found = "=" * 35 + "\n", []
    begin, *parts = text.split(rule)
    assert begin.count("\n") == 1, "the environment, where it runs, and the seed"
    for i, part in enumerate(parts):
        if i % 2:
            assert part == "" or i == len(parts) - 1, part
            continue
        sections = {}
        for section in part.strip("\n").split("\n\n"):
            title, line, *figures = section.split("\n")
            assert line == "-" * 35
            sections[title] = dict(re.fullmatch(r"  (\w+): +(.*)", figure).groups() for figure in figures)
        assert [re.sub(r"\d+", "N", title) for title in sections] == list(SECTIONS)
        assert [list(figures) for figures in sections.values()] == list(SECTIONS.values())
        found.append(sections)
    return found


def train_rows(run: Path) -> list[dict]:
    return [row for row in read_journal(run) if row["kind"] == "train"]


@pytest.mark.requirement("S3.1", "S3.2", "S3.13", "S3.15", "S3.31", "S3.32", "S3.33", "S3.34")
def test_the_documents_examples_run_in_order_with_their_own_defaults(tmp_path, capsys):
    """Train, read the log, save, load and play. Only the number of steps is smaller than the example's 300,000."""
    environment = gymnasium.make("Pendulum-v1")
    agent = PPOClip()
    trainer = OnPolicyTrainer(
        environment, agent, total_timesteps=22_000, max_episode_len=200, run_dir=tmp_path / "run"
    )  # fmt: skip
    result = trainer.train()
    shown, rows, policies = capsys.readouterr().err, train_rows(tmp_path / "run"), tmp_path / "run" / "policies"
    assert result.steps == 22_000 and result.iterations == 10, "eleven trajectories of 200 steps pass 2,048"
    for number, (sections, row) in enumerate(zip(blocks(shown), rows, strict=True), 1):
        rollout, recent, totals = sections.values()
        assert f"RECENT {11 * number} EPISODES" in sections
        assert rollout["mean_ep_len"] == recent["mean_ep_len"] == "200.00" and rollout["rollout_len"] == "2200"
        assert rollout["mean_ep_return"] == f"{row['episode_return_mean']:.2f}"
        assert rollout["mean_reward"] == f"{row['episode_return_mean'] / 200:.4f}"
        assert rollout["mean_clipped_ratio"] == f"{row['clip_fraction']:.4f}"
        assert rollout["approx_kl"] == f"{row['approx_kl']:.6f}"
        assert rollout["time_elapsed"] == f"{row['seconds/act'] + row['seconds/environment']:.2f} s"
        returns = [x for past in rows[:number] for x in past["episode_returns"]]
        assert recent["mean_ep_return"] == f"{np.mean(returns):.2f}"
        assert recent["success_rate"] == "0.00% (terminated)", "a pendulum never terminates"
        assert totals == {
            "episodes_count": str(11 * number), "timesteps_count": str(2200 * number), "rollouts_count": str(number),
            "total_timesteps": "22000", "clip_range": "0.2",
        }  # fmt: skip
        assert row["learning_rate"] == pytest.approx(3e-4), "nobody asked for it to be annealed"
    names = {path.name for path in policies.iterdir()}
    assert {"final_actor.safetensors", "final_actor.pth", "final_critic.safetensors", "final_critic.pth"} <= names
    assert {f"{name}.safetensors" for name in ("best_return_pi_ckpt", "pi_ckpt1", "pi_ckpt2", "pi_ckpt3")} <= names
    paths = {"path_for_policy_model": tmp_path / "policy.pth", "path_for_value_model": tmp_path / "value.pth"}
    exec(SAVING.replace("agent = PPOClip()\n", ""), {"agent": agent, **paths})
    loaded = PPOClip(state_dim=3, action_dim=1)
    state, _ = environment.reset(seed=0)
    for policy, same in ((paths["path_for_policy_model"], True), (policies / "best_return_pi_ckpt", False)):
        loaded.load_policy_net(policy)
        loaded.load_value_net(paths["path_for_value_model"])
        (action, value, _), (expected, worth, _) = (a.select_action(state, deterministic=True) for a in (loaded, agent))
        assert environment.action_space.contains(action) and value == pytest.approx(worth, abs=1e-4)
        assert not same or action == pytest.approx(expected, abs=1e-5)
    best = ludus.load_policy(policies / "best_return_pi_ckpt.safetensors")
    assert trainer.trainer.keeper.marks.best_return is not None and best(state).shape == (1,)
    environment.close()


@pytest.mark.requirement("S3.14", "S3.33")
def test_the_trainer_cuts_at_the_longest_episode_and_hands_back_what_was_learnt(tmp_path, capsys):
    environment, agent = gymnasium.make("Pendulum-v1"), PPOClip(num_update_epochs=1)
    trainer = OnPolicyTrainer(environment, agent, 1000, 256, 50, verbose=False, run_dir=tmp_path / "run")
    result = trainer.train()
    assert result.steps == 1200 and result.episodes == 24, "rollouts of six times 50 steps"
    assert result.updates == 4 * 5, "each of four batches of 64 and one of 44"
    assert capsys.readouterr() == ("", "")
    learnt = agent.agent.policy.state.parameters
    for ours, theirs in zip(learnt, trainer.trainer.policy.state.parameters, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    action, *_ = agent.select_action(environment.reset(seed=0)[0], deterministic=True)
    np.testing.assert_array_equal(action, ludus.load_policy(tmp_path / "run")(environment.reset(seed=0)[0]))
    assert trainer.train().steps == 2400, "another call trains for as many steps again"
    environment.close()


@pytest.mark.requirement("S3.12", "S3.13", "S1.29")
@pytest.mark.parametrize("num_envs", [None, 4])
def test_a_rollout_is_whole_trajectories_until_they_pass_the_threshold(tmp_path, num_envs):
    agent = PPOClip(num_update_epochs=1, target_kl=None)
    trainer = OnPolicyTrainer(
        "CartPole-v1", agent, 1500, 500, max_episode_len=40, num_envs=num_envs, verbose=False, run_dir=tmp_path / "run"
    )
    trainer.trainer.final_episodes = 0
    trainer.train()
    before, updates = 0, 0
    for row in train_rows(tmp_path / "run"):
        steps, before = row["steps"] - before, row["steps"]
        assert 500 <= steps == sum(row["episode_lengths"]) < 500 + 40 * (num_envs or 1)
        updates += -(-steps // 64)
        assert row["updates"] == updates, "the last batch of an epoch may be short"


class Doubled(gymnasium.RewardWrapper):
    """Pays seven for everything."""

    def reward(self, reward):
        return 7.0


@pytest.mark.requirement("S3.14", "S4.28")
def test_an_environment_is_used_as_it_is_given(tmp_path):
    given = Doubled(gymnasium.make("Pendulum-v1", g=0.1))
    trainer = OnPolicyTrainer(given, PPOClip(num_update_epochs=1), 64, 64, 32, verbose=False, run_dir=tmp_path / "run")
    (played,) = trainer.trainer.env.envs
    assert played.unwrapped.g == 0.1 and trainer.trainer.env.max_episode_steps == 32
    trainer.trainer.final_episodes = 0
    trainer.train()
    assert [row["reward_mean"] for row in train_rows(tmp_path / "run")] == [7.0]
    given.close()
    with pytest.raises(ludus.LudusError, match=r"must be an id, a gymnasium.Env, its class, or a ludus Environment"):
        OnPolicyTrainer(object(), PPOClip())


def test_the_length_of_episodes_is_the_shorter_limit_and_what_is_made_already_is_not_changed(tmp_path):
    made = [
        OnPolicyTrainer("Pendulum-v1", PPOClip(), 10, max_episode_len=n, run_dir=tmp_path / f"{n}") for n in (50, 900)
    ]
    assert [trainer.trainer.env.max_episode_steps for trainer in made] == [50, 200]
    batch = ludus.make_env("Pendulum-v1", 2)
    assert OnPolicyTrainer(batch, PPOClip(), run_dir=tmp_path / "two").trainer.env is batch
    with pytest.raises(ludus.LudusError, match=r"max_episode_len=50: jax:Pendulum-v1 has longer episodes"):
        OnPolicyTrainer(batch, PPOClip(), max_episode_len=50)
    with pytest.raises(ludus.LudusError, match="num_envs=3: this environment was made with 2"):
        OnPolicyTrainer(batch, PPOClip(), num_envs=3)


@pytest.mark.requirement("S3.24", "S3.25", "S3.4")
def test_window_success_rule_and_epochs_are_given_under_the_documents_names(tmp_path):
    for number, (changes, rule) in enumerate((({}, "terminated"), ({"success_return": -9.0}, "return"))):
        agent = PPOClip(num_update_epochs=3)
        made = OnPolicyTrainer(
            "Pendulum-v1", agent, recent_episodes_window=7, run_dir=tmp_path / f"{number}", **changes
        )
        settings = made.trainer.settings
        assert (settings.success, settings.recent_episodes_window) == (rule, 7)
        assert made.trainer.algorithm.epochs_per_update == 3
    assert PPOClip(update_epochs=4).algorithm.epochs_per_update == 4
    assert not PPOClip().algorithm.anneal_learning_rate
    assert PPOClip(anneal_learning_rate=True).algorithm.anneal_learning_rate


@pytest.mark.requirement("S3.12")
def test_the_number_of_batches_may_be_given_instead_of_their_size(tmp_path):
    trainer = OnPolicyTrainer(
        "Pendulum-v1", PPOClip(update_epochs=2, target_kl=None), 256, 256, 200, batch_num=4, verbose=False,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    trainer.trainer.final_episodes = 0
    assert trainer.train().updates == 8
