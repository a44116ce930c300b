"""A saved policy is complete: the normaliser travels with the parameters, and nothing in the file can run."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import ludus
from ludus.networks.actor_critic import ActionHead
from ludus.policy import FINAL, save_policy

OBS = np.random.default_rng(0).uniform(-2, 2, (32, 3)).astype(np.float32)


def trained(tmp_path, **options) -> ludus.Trainer:
    env = ludus.make_env("Pendulum-v1", 4)
    ppo = ludus.PPO(batch_size=64, minibatch_size=32, **options)
    trainer = ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, verbose=False), run_dir=tmp_path / "run")
    trainer.train(total_steps=640)
    return trainer


def test_a_loaded_policy_acts_as_the_trained_one_did(tmp_path):
    trainer = trained(tmp_path, normalize_observations=True)
    loaded = ludus.load_policy(tmp_path / "run")
    np.testing.assert_array_equal(loaded(OBS), trainer.policy(OBS))
    assert float(loaded.state.observations.count) == 640
    env = ludus.make_env("Pendulum-v1", 4)
    returns = [ludus.evaluate(policy, env, episodes=5).returns for policy in (loaded, trainer.policy)]
    np.testing.assert_array_equal(*returns)


def test_the_normaliser_matters(tmp_path):
    trained(tmp_path, normalize_observations=True)
    policy = ludus.load_policy(tmp_path / "run")
    forgotten = ludus.Policy(policy.algorithm, jax.tree.map(lambda x: x, policy.state), policy.spec, policy.env_id)
    object.__setattr__(forgotten.state, "observations", policy.state.observations._replace(mean=np.ones(3)))
    assert not np.allclose(policy(OBS), forgotten(OBS))


def test_one_observation_or_a_batch(tmp_path):
    policy = trained(tmp_path).policy
    assert policy(OBS).shape == (32, 1)
    np.testing.assert_allclose(policy(OBS[0]), policy(OBS)[0], rtol=1e-5)
    assert (np.abs(policy(100 * OBS)) <= 2).all(), "actions lie within Pendulum's bounds"


def test_a_policy_does_not_change_when_training_goes_on(tmp_path):
    trainer = trained(tmp_path)
    policy = trainer.policy
    before = policy(OBS)
    trainer.train(total_steps=1280)
    np.testing.assert_array_equal(before, policy(OBS))
    assert not np.array_equal(before, trainer.policy(OBS))


class Own(ludus.ActorCritic):
    """A user's own network: one shared layer."""

    def __init__(self, spec, rngs):
        self.shared = nnx.Linear(3, 16, rngs=rngs)
        self.head = ActionHead(16, spec.action_space, rngs=rngs)
        self.values = nnx.Linear(16, 1, rngs=rngs)

    def actor(self, features):
        return self.head(nnx.relu(self.shared(features)))

    def critic(self, features):
        return self.values(nnx.relu(self.shared(features)))[..., 0]


@pytest.mark.requirement("S4.8")
def test_a_users_own_network_and_optimiser_train_save_and_load(tmp_path):
    options = {"network": Own, "optimizer": optax.adamw(1e-3)}
    trainer = trained(tmp_path, **options)
    with pytest.raises(ludus.LudusError, match=r"algorithm.network is your own code: .*algorithm="):
        ludus.load_policy(tmp_path / "run")
    loaded = ludus.load_policy(tmp_path / "run", algorithm=ludus.PPO(**options))
    np.testing.assert_array_equal(loaded(OBS), trainer.policy(OBS))


def test_a_gru_policy_round_trips(tmp_path):
    trainer = trained(tmp_path, network=ludus.GRU(memory_size=8))
    loaded = ludus.load_policy(tmp_path / "run")
    memory = loaded.initial_memory(32)
    jax.tree.map(np.testing.assert_array_equal, loaded(OBS, memory), trainer.policy(OBS, memory))


def test_damaged_files_are_refused_by_name(tmp_path):
    trained(tmp_path)
    file = tmp_path / "run" / FINAL
    whole = file.read_bytes()
    for damage in (b"", b"not a policy", whole[: len(whole) // 2], b"\x80\x04cos\nsystem\n(S'true'\ntR."):
        file.write_bytes(damage)
        with pytest.raises(ludus.LudusError, match=r"final_actor.safetensors: not a readable policy file"):
            ludus.load_policy(tmp_path / "run")
    file.unlink()
    with pytest.raises(ludus.LudusError, match="no such policy file"):
        ludus.load_policy(tmp_path / "run")


def test_a_policy_of_another_shape_is_refused(tmp_path):
    trained(tmp_path)
    other = ludus.PPO(network=ludus.MLP(hidden_sizes=(8, 8)))
    with pytest.raises(ludus.LudusError, match=r"parameters/.* is float32"):
        ludus.load_policy(tmp_path / "run", algorithm=other)


def test_saving_is_all_or_nothing(tmp_path):
    policy = trained(tmp_path).policy
    save_policy(policy, tmp_path / "copy.safetensors")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".partial"] == []
    np.testing.assert_array_equal(ludus.load_policy(tmp_path / "copy.safetensors")(OBS), policy(OBS))


def test_a_flipped_bit_in_a_weight_is_noticed(tmp_path):
    env = ludus.make_env("CartPole-v1", num_envs=2)
    trainer = ludus.Trainer(
        ludus.PPO(batch_size=32, minibatch_size=16), env, ludus.Settings(eval_frequency=0, verbose=False)
    )
    save_policy(trainer.policy, tmp_path / "policy.safetensors")
    data = bytearray((tmp_path / "policy.safetensors").read_bytes())
    data[-7] ^= 1
    (tmp_path / "policy.safetensors").write_bytes(data)
    with pytest.raises(ludus.LudusError, match=r"policy.safetensors: is damaged \(its SHA-256"):
        ludus.load_policy(tmp_path / "policy.safetensors")
