"""A saved policy is complete: the normaliser travels with the parameters, and nothing in the file can run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from learned_cases import NAMED, learned
from places import GOLDEN
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import ludus
from ludus.algorithms.critic import load_critic, save_critic
from ludus.algorithms.policy import FINAL, save_policy
from ludus.algorithms.policy_file import checksum
from ludus.networks.action_scaling import settled
from ludus.networks.actor_critic import ActionHead
from ludus.networks.encoder import NatureCNN
from ludus.spaces import Box, Discrete
from ludus.training.past_policies import policy_at
from ludus.types import Spec

pytestmark = pytest.mark.slow

OBS = np.random.default_rng(0).uniform(-2, 2, (32, 3)).astype(np.float32)


def trained(tmp_path, **options) -> ludus.Trainer:
    env = ludus.make_env("Pendulum-v1", 4)
    ppo = ludus.PPO(batch_size=64, minibatch_size=32, **options)
    trainer = ludus.Trainer(
        ppo, env, ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False), run_dir=tmp_path / "run"
    )
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
    class Local(Own):
        """A network that nobody can import."""

    options = {"network": Local, "optimizer": optax.adamw(1e-3)}
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
    with pytest.raises(ludus.LudusError, match=r"its network is MLP.*but it is to be loaded into MLP"):
        ludus.load_policy(tmp_path / "run", algorithm=other)


def test_saving_is_all_or_nothing(tmp_path):
    policy = trained(tmp_path).policy
    save_policy(policy, tmp_path / "copy.safetensors")
    assert [path for path in tmp_path.iterdir() if ".partial" in path.name] == []
    np.testing.assert_array_equal(ludus.load_policy(tmp_path / "copy.safetensors")(OBS), policy(OBS))


def test_a_flipped_bit_in_a_weight_is_noticed(tmp_path):
    env = ludus.make_env("CartPole-v1", num_envs=2)
    trainer = ludus.Trainer(
        ludus.PPO(batch_size=32, minibatch_size=16),
        env,
        ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False),
    )
    save_policy(trainer.policy, tmp_path / "policy.safetensors")
    data = bytearray((tmp_path / "policy.safetensors").read_bytes())
    data[-7] ^= 1
    (tmp_path / "policy.safetensors").write_bytes(data)
    with pytest.raises(ludus.LudusError, match=r"policy.safetensors: is damaged \(its SHA-256"):
        ludus.load_policy(tmp_path / "policy.safetensors")


@pytest.mark.requirement("S4.16")
@pytest.mark.parametrize("save", [save_policy, save_critic])
def test_a_file_whose_checksum_was_removed_is_refused(save, tmp_path):
    file, (policy, critic) = tmp_path / "part.safetensors", learned(*NAMED["gru"])
    save(policy if save is save_policy else critic, file)
    with safe_open(file, framework="numpy") as handle:
        header = {name: text for name, text in handle.metadata().items() if name != "sha256"}
    save_file(load_file(file), file, header)
    with pytest.raises(ludus.LudusError, match=r"^.*part.safetensors: its SHA-256 was removed, so nothing tells"):
        (ludus.load_policy if save is save_policy else load_critic)(file)


def test_a_file_of_the_first_versions_which_had_no_checksum_is_loaded_and_that_is_said(caplog):
    ludus.load_policy(GOLDEN / "run-1")
    load_critic(GOLDEN / "run-1")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{GOLDEN / 'run-1' / 'policies' / name}.safetensors: has no SHA-256, as no {noun} file of the first versions: "
        "damage would not be noticed"
        for name, noun in (("final_actor", "policy"), ("final_critic", "critic"))
    ]
    caplog.clear()
    ludus.load_policy(GOLDEN / "run-2-ppo-cartpole")
    assert not caplog.records


# Files from before numbers were scaled by the bounds of each entry


@pytest.fixture
def old_file(tmp_path):
    """A policy as it was saved then: its header says nothing of scaling."""
    policy, _ = learned(*NAMED["saved before bounds counted"])
    save_policy(policy, tmp_path / "new.safetensors")
    with safe_open(tmp_path / "new.safetensors", framework="numpy") as handle:
        header = {name: text for name, text in handle.metadata().items() if name not in ("scaling", "sha256")}
        save_file({name: handle.get_tensor(name) for name in handle.keys()}, tmp_path / "old.safetensors", header)  # noqa: SIM118
    return tmp_path / "old.safetensors"


def test_a_policy_that_was_saved_before_bounds_counted_acts_as_it_did(old_file, tmp_path):
    """Then bytes were divided by 255, and a box that is not bounded everywhere was only clipped."""
    loaded = ludus.load_policy(old_file)
    space = loaded.spec.observation_space
    generator = np.random.default_rng(0)
    obs = {
        name: generator.integers(leaf.bounds[1] + 1, size=(7, *leaf.shape)).astype(np.uint8)
        for name, leaf in space.spaces
    }
    module = loaded.state.network.merge(loaded.state.parameters)
    camera = dict(zip(dict(space.spaces), module.encoder.parts, strict=True))["camera"]
    whole = NatureCNN(Box(0, 255, camera.space.shape, "uint8"), generator)
    whole.convolutions, whole.dense = camera.convolutions, camera.dense
    flat = {name: x.reshape(7, -1) / np.float32(255) for name, x in obs.items()}
    features = np.concatenate([flat["bits"], np.asarray(whole(obs["camera"])), flat["counts"]], axis=1)
    outputs = np.asarray(module.actor(features).mean)
    expected = np.clip(outputs, *loaded.spec.action_space.bounds)
    np.testing.assert_allclose(loaded(obs), expected, rtol=1e-5, atol=1e-6)

    save_policy(loaded, tmp_path / "again.safetensors")
    np.testing.assert_array_equal(ludus.load_policy(tmp_path / "again.safetensors")(obs), loaded(obs))
    now = learned(*NAMED["bounds"])[0]
    assert now.spec.scaling == "bounds" and not np.allclose(now(obs), loaded(obs), atol=0.1)


def test_where_scaling_means_what_it_meant_an_old_file_is_like_a_new_one():
    for file in ("ppo_policy.safetensors", "sac_policy.safetensors", "run-1"):
        assert ludus.load_policy(GOLDEN / file).spec.scaling == "bounds"


def test_a_space_that_a_file_only_claims_costs_no_memory():
    huge = (2**40,)
    for space in (Box(0, 1, huge, "uint8"), Box(0, 255, huge, "uint8"), Box(-1, 1, huge), Box(-1, np.inf, huge)):
        assert settled(Spec(space, Discrete(2), 1, "bytes")).scaling == (
            "bytes" if space.high == 1 and space.low == 0 else "bounds"
        )
        assert settled(Spec(Discrete(2), space, 1, "bytes")).scaling == "bounds"


def test_a_scaling_that_there_is_not_is_refused(old_file, tmp_path):
    with safe_open(old_file, framework="numpy") as handle:
        header = {**handle.metadata(), "scaling": "furlongs"}
    arrays = load_file(old_file)
    save_file(arrays, tmp_path / "odd.safetensors", header | {"sha256": checksum(header, arrays)})
    with pytest.raises(ludus.LudusError, match=r"its header is damaged .*scaling='furlongs'"):
        ludus.load_policy(tmp_path / "odd.safetensors")


def test_a_run_goes_on_with_the_scaling_that_it_began_with(tmp_path):
    settings = ludus.Settings(
        eval_frequency=0, eval_episodes_final=0, verbose=False, checkpoint=ludus.CheckpointOptions(every_iterations=1)
    )
    env, ppo = ludus.make_env(Bits(), 4), ludus.PPO(batch_size=64, minibatch_size=32)
    trainer = ludus.Trainer(ppo, env, settings, run_dir=tmp_path / "run")
    trainer.loop.spec = dataclasses.replace(trainer.loop.spec, scaling="bytes")
    trainer.train(total_steps=64)
    resumed = ludus.Trainer.resume(tmp_path / "run", total_steps=128, env=env, verbose=False)
    assert resumed.loop.spec.scaling == "bytes"
    resumed.train()
    assert ludus.load_policy(tmp_path / "run").spec.scaling == "bytes"
    assert policy_at(tmp_path / "run", "latest", env=env).spec.scaling == "bytes"


class Bits(ludus.Environment):
    """Ends at once."""

    observation_space, action_space = Box(0, 1, (2,), "uint8"), Discrete(2)

    def reset(self, key):
        return (), jnp.ones(2, jnp.uint8)

    def step(self, state, action, key):
        return (), ludus.Step(jnp.ones(2, jnp.uint8), jnp.float32(1), jnp.bool_(True))
