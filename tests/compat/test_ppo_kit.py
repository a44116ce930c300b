"""`PPOClip`: the kit's names, with the core behind them."""

import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import ludus
from ludus.compat.ppo_kit import OnPolicyTrainer, PPOClip, RolloutBuffer, TrajectoryBuffer
from ludus.spaces import Box
from oracles import flat

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
    assert {path.name for path in tmp_path.iterdir()} >= {"actor.safetensors", "critic.safetensors"}


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
    distribution = policy.algorithm.decide(policy.state, (), state[None].astype(np.float32))[1]
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


@pytest.mark.requirement("S3.1", "S3.13", "S3.14", "S3.15", "S3.33", "S3.34")
def test_the_trainer_fills_rollouts_shows_statistics_and_leaves_the_kits_files(tmp_path, capsys):
    environment = gymnasium.make("Pendulum-v1")
    agent = PPOClip(update_epochs=1)
    trainer = OnPolicyTrainer(
        environment,
        agent,
        total_timesteps=1000,
        threshold_rollout_length=256,
        max_episode_len=50,
        run_dir=tmp_path / "run",
    )
    result = trainer.train()
    assert result.steps == 1024 and result.episodes == 1024 // 50 and result.updates > 0
    shown = capsys.readouterr().err
    assert shown.count("ROLLOUT STATISTICS") == 4 and "  rollout_len:        256\n" in shown
    assert "  mean_ep_len:        50.00\n" in shown and "  total_timesteps:    1000\n" in shown
    names = {path.name for path in (tmp_path / "run" / "policies").iterdir()}
    assert {"final_actor.safetensors", "final_actor.pth", "final_critic.safetensors", "final_critic.pth"} <= names
    assert {f"pi_ckpt{i}.safetensors" for i in (1, 2, 3)} <= names
    learnt = agent.agent.policy.state.parameters
    for ours, theirs in zip(learnt, trainer.trainer.policy.state.parameters, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    action, *_ = agent.select_action(environment.reset(seed=0)[0], deterministic=True)
    np.testing.assert_array_equal(action, ludus.load_policy(tmp_path / "run")(environment.reset(seed=0)[0]))


@pytest.mark.requirement("S3.12")
def test_the_number_of_batches_may_be_given_instead_of_their_size(tmp_path):
    trainer = OnPolicyTrainer(
        "Pendulum-v1", PPOClip(update_epochs=2, target_kl=None), 256, 256, 200, batch_num=4, verbose=False,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    assert trainer.train().updates == 8


def test_an_environment_without_an_id_is_refused():
    class Own:
        spec = None

    with pytest.raises(ludus.LudusError, match=r"has no id; pass what ludus.make_env returns"):
        OnPolicyTrainer(Own(), PPOClip())
