"""A saved critic is complete, judges in the environment's units, and a file that is not one is refused by name."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from learned_cases import ARM, NAMED, SAC_OPTIONS, learned
from places import GOLDEN
from safetensors.numpy import load_file, save_file

import ludus
from ludus.algorithms.critic import Critic, load_critic, save_critic
from ludus.algorithms.normalize import normalize
from ludus.algorithms.policy import Policy, load_policy, save_policy
from ludus.algorithms.policy_file import checksum
from ludus.networks.action_scaling import from_environment, to_environment
from ludus.spaces import Box

OBS = np.random.default_rng(0).uniform(-2, 2, (32, 3)).astype(np.float32)
ACTIONS = np.random.default_rng(1).uniform(-2, 2, (32, 1)).astype(np.float32)


def trained(algorithm) -> tuple[ludus.Trainer, Critic]:
    trainer = ludus.Trainer(
        algorithm,
        ludus.make_env("Pendulum-v1", 4),
        ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False),
    )
    trainer.train(total_steps=640)
    state = algorithm.critic(trainer.state.learner)
    return trainer, Critic(trainer.policy.algorithm, state, trainer.loop.spec, "jax:Pendulum-v1")


def saved(critic: Critic, tmp_path: Path) -> Critic:
    save_critic(critic, tmp_path / "policies" / "final_critic.safetensors")
    return load_critic(tmp_path)


@pytest.mark.slow
@pytest.mark.requirement("S3.31")
@pytest.mark.parametrize("options", [{}, {"normalize_returns": True}, {"normalize_observations": True}])
def test_a_loaded_ppo_critic_says_what_training_uses(tmp_path, options):
    ppo = ludus.PPO(batch_size=64, minibatch_size=32, **options)
    trainer, critic = trained(ppo)
    loaded = saved(critic, tmp_path)
    np.testing.assert_array_equal(loaded(OBS), critic(OBS))
    # `_estimates` is what advantages are made of: its values are the critic's, in real units.
    learner = trainer.state.learner
    steps = ludus.types.Transition(
        OBS[None], None, np.zeros((1, 32), np.float32), np.ones((1, 32), bool), np.zeros((1, 32), bool), OBS[None], None
    )
    estimates = ppo._estimates(learner, steps, ludus.types.Rollout(steps, ()))
    # With no reward, an ended episode and lambda = anything, the advantage is minus the value.
    np.testing.assert_allclose(loaded(OBS), -np.asarray(estimates.advantage)[0], rtol=1e-5, atol=1e-5)


def test_a_value_is_in_units_of_the_environments_rewards(tmp_path):
    """Where rewards and returns are normalised, the network's own number is not the value."""
    _, critic = learned(ludus.PPO(normalize_returns=True, normalize_rewards=True), ARM)
    state = critic.state
    obs = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    raw = state.network.merge(state.parameters).critic(obs)
    mean, deviation = np.float64(state.returns.mean), np.sqrt(np.float64(state.returns.variance) + 1e-8)
    unit = np.sqrt(np.float64(state.rewards.variance) + 1e-8)
    np.testing.assert_allclose(critic(obs), (mean + deviation * raw) * unit, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(saved(critic, tmp_path)(obs), critic(obs))


@pytest.mark.slow
@pytest.mark.requirement("S3.31")
def test_a_loaded_sac_critic_is_the_lesser_of_both_at_real_actions(tmp_path):
    sac = ludus.SAC(batch_size=32, learning_starts=64, replay_size=1024, normalize_observations=True)
    trainer, critic = trained(sac)
    loaded = saved(critic, tmp_path)
    np.testing.assert_array_equal(loaded(OBS, ACTIONS), critic(OBS, ACTIONS))
    learner = trainer.state.learner
    seen = normalize(learner.observations, OBS)
    each = [
        learner.networks.critic.merge(tuple(leaf[i] for leaf in learner.learner.parameters.critics))(seen, ACTIONS / 2)
        for i in range(2)
    ]
    np.testing.assert_allclose(loaded(OBS, ACTIONS), np.minimum(*each), rtol=1e-5, atol=1e-5)
    assert (each[0] < each[1]).any() and (each[0] > each[1]).any()


def test_one_observation_or_a_batch():
    _, critic = learned(*NAMED["ppo continuous"])
    assert critic(OBS).shape == (32,)
    np.testing.assert_allclose(critic(OBS[0]), critic(OBS)[0], rtol=1e-5)
    assert critic(OBS[0]).shape == ()


def test_a_recurrent_critic_remembers(tmp_path):
    _, critic = learned(*NAMED["gru"])
    loaded, obs = saved(critic, tmp_path), np.ones((2, 5), np.float32)
    first, memory = loaded(obs, memory=loaded.initial_memory(2))
    second, _ = loaded(obs, memory=memory)
    np.testing.assert_allclose(first, critic(obs), rtol=1e-6)
    assert np.abs(second - first).max() > 1e-3


def test_what_a_critic_is_called_with():
    _, ppo = learned(*NAMED["ppo continuous"])
    _, sac = learned(*NAMED["sac"])
    with pytest.raises(ludus.LudusError, match="critic of object:Case: is called with an observation alone"):
        ppo(OBS, ACTIONS)
    with pytest.raises(ludus.LudusError, match="critic of object:Case: is called with an observation and an action"):
        sac(np.zeros((4, 5)))


def test_actions_come_back_from_the_environments_units():
    space = Box((-1.0, 0.0, 2.0), (3.0, 0.5, 2.0), (3,))
    unit = np.random.default_rng(0).uniform(-1, 1, (9, 3)).astype(np.float32)
    back = from_environment(space, to_environment(space, jax.numpy.asarray(unit)))
    np.testing.assert_allclose(back[:, :2], unit[:, :2], atol=1e-5)
    np.testing.assert_array_equal(back[:, 2], 0.0)  # both bounds are 2: nothing to choose


# --- files of before ---


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_files_written_before_load(name):
    """The files and their answers were written by version 0.1 before critics could be saved."""
    expected = json.loads((GOLDEN / f"{name}_policy.json").read_text())
    policy = load_policy(GOLDEN / f"{name}_policy.safetensors")
    np.testing.assert_allclose(policy(np.asarray(expected["obs"])), expected["action"], rtol=1e-5, atol=1e-6)


# --- files that are none ---


SAVE = {Policy: save_policy, Critic: save_critic}
LOAD = {Policy: load_policy, Critic: load_critic}


@pytest.fixture(params=[Policy, Critic], ids=["policy", "critic"])
def kept(request, tmp_path):
    """A good file, and how to load it."""
    parts = learned(*NAMED["ppo returns"])
    part = next(part for part in parts if type(part) is request.param)
    SAVE[request.param](part, tmp_path / "part.safetensors")
    return tmp_path / "part.safetensors", LOAD[request.param], request.param.__name__.lower()


def test_damaged_files_are_refused_by_name(kept):
    file, load, noun = kept
    whole = file.read_bytes()
    for damage in (b"", b"nothing", whole[: len(whole) // 2], whole[:-1], b"\x80\x04cos\nsystem\n(S'true'\ntR."):
        file.write_bytes(damage)
        with pytest.raises(ludus.LudusError, match=rf"part.safetensors: not a readable {noun} file"):
            load(file)
    file.unlink()
    with pytest.raises(ludus.LudusError, match=rf"part.safetensors: no such {noun} file"):
        load(file)


def rewritten(file: Path, change) -> None:
    """Forge a file: its checksum is right."""
    from safetensors import safe_open

    arrays = load_file(file)
    with safe_open(file, framework="numpy") as handle:
        header = {name: text for name, text in handle.metadata().items() if name != "sha256"}
    arrays, header = change(arrays, header)
    save_file(arrays, file, header | {"sha256": checksum(header, arrays)})


NAME = "parameters/critic_head/bias"


@pytest.mark.parametrize(("change", "reason"), [
    (lambda a, h: (a | {NAME: np.zeros(3, np.float32)}, h), r"critic_head/bias is float32\[3\], but .* float32\[1\]"),
    (lambda a, h: (a | {NAME: np.zeros(1, np.float64)}, h), r"critic_head/bias is float64\[1\]"),
    (lambda a, h: (a | {NAME: np.full(1, np.nan, np.float32)}, h), "critic_head/bias holds a NaN or an infinity"),
    (lambda a, h: (a | {NAME: np.full(1, np.inf, np.float32)}, h), "critic_head/bias holds a NaN or an infinity"),
    (lambda a, h: (a | {"more": np.zeros(1, np.float32)}, h), r"holds other arrays .*first: more"),
    (lambda a, h: ({n: x for n, x in a.items() if n != NAME}, h), "holds other arrays .*first: parameters/critic_head"),
    (lambda a, h: (a, h | {"format": "other"}), "format 'other' is not"),
    (lambda a, h: (a, {}), "format None is not"),
    (lambda a, h: (a, h | {"algorithm": "{"}), "its header is damaged"),
    (lambda a, h: (a, h | {"algorithm": '{"name": "evil"}'}), "algorithm=evil: must be one of"),
    (lambda a, h: (a, h | {"action_space": '{"kind": "os"}'}), "its header is damaged"),
    (lambda a, h: (a, {n: x for n, x in h.items() if n != "env"}), "its header is damaged"),
    (lambda a, h: (a, h | {"num_envs": "100000000000"}), "its header is damaged"),
    (lambda a, h: (a, h | {"algorithm": h["algorithm"].replace("[64, 64]", "[64, 9999999]")}), "layers of 99"),
    (lambda a, h: (a, h | {"algorithm": h["algorithm"].replace("[64, 64]", "[64, -64]")}), "its header is damaged"),
    (lambda a, h: (a, h | {"observation_space": h["observation_space"].replace("[5]", "[9999999]")}), "layers of 99"),
    (lambda a, h: (a, h | {"action_space": '{"kind": "Discrete", "n": 99999999, "start": 0}'}), "layers of 99"),
])  # fmt: skip
def test_hostile_files_are_refused_with_name_and_reason(kept, change, reason):
    file, load, _ = kept
    rewritten(file, change)
    with pytest.raises(ludus.LudusError, match=rf"part.safetensors: .*{reason}"):
        load(file)


def test_loading_makes_no_room_for_a_replay(tmp_path):
    policy, critic = learned(*NAMED["sac"])
    huge = dataclasses.replace(ludus.SAC(**SAC_OPTIONS), replay_size=10**12)
    save_policy(Policy(huge, policy.state, policy.spec, "huge"), tmp_path / "policy.safetensors")
    save_critic(Critic(huge, critic.state, critic.spec, "huge"), tmp_path / "critic.safetensors")
    assert load_policy(tmp_path / "policy.safetensors").algorithm.replay_size == 10**12
    assert load_critic(tmp_path / "critic.safetensors").env_id == "huge"


def test_a_policy_is_no_critic(tmp_path):
    policy, critic = learned(*NAMED["sac"])
    save_policy(policy, tmp_path / "policy.safetensors")
    save_critic(critic, tmp_path / "critic.safetensors")
    with pytest.raises(ludus.LudusError, match="format 'ludus-policy-1' is not 'ludus-critic-1'"):
        load_critic(tmp_path / "policy.safetensors")
    with pytest.raises(ludus.LudusError, match="format 'ludus-critic-1' is not 'ludus-policy-1'"):
        load_policy(tmp_path / "critic.safetensors")
