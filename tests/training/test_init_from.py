"""`init_from`: a run that begins with the policy, and the critic, of another."""

import dataclasses
import hashlib

import jax
import numpy as np
import pytest

import ludus
from ludus.algorithms.critic import load_critic
from ludus.algorithms.hyperparameters import as_arrays
from ludus.algorithms.policy import FINAL
from ludus.envs.native.classic_control import CartPole
from ludus.runs.folder import read_config
from ludus.training.past_policies import untrained
from ludus.training.state_arrays import differences
from ludus.training.verify import state_of
from ludus.types import LudusError

pytestmark = pytest.mark.slow

TINY = ludus.MLP((8, 7))
PPO = ludus.PPO(batch_size=64, minibatch_size=32, epochs_per_update=1, normalize_observations=True, network=TINY)
SAC = ludus.SAC(
    network=TINY, replay_size=512, batch_size=16, unroll_length=8, learning_starts=64, normalize_observations=True
)


def settings(**words):
    return ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0, record_behaviour=False, **words)


def env_of(name, num_envs=4):
    return ludus.make_env(name, num_envs=num_envs)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Runs to begin with: PPO on both tasks, and clones of them."""
    root = tmp_path_factory.mktemp("given")
    for name, env in (("cartpole", env_of("CartPole-v1")), ("pendulum", env_of("Pendulum-v1"))):
        trainer = ludus.Trainer(PPO, env, settings(), run_dir=root / name)
        trainer.train(total_steps=192)
        ludus.write_demonstrations(
            ludus.record_demonstrations(trainer.policy, env, 4, max_steps=40), root / f"{name}.safetensors"
        )
    for name, env, actor in (("cartpole", "CartPole-v1", "ppo"), ("pendulum", "Pendulum-v1", "sac")):
        clone = ludus.BC(demonstrations=str(root / f"{name}.safetensors"), network=TINY, actor=actor)
        ludus.Trainer(clone, env_of(env, 1), settings(), run_dir=root / f"{name}-clone").train(total_steps=3)
    return root


def observations(policy, count=20):
    return np.random.default_rng(0).uniform(-0.2, 0.2, (count, *policy.spec.observation_space.shape)).astype(np.float32)


@pytest.mark.requirement("S2.24")
@pytest.mark.parametrize(("source", "env", "algorithm"), [
    ("cartpole-clone", "CartPole-v1", PPO), ("cartpole", "CartPole-v1", PPO), ("pendulum-clone", "Pendulum-v1", SAC),
])  # fmt: skip
def test_a_run_begins_with_the_policy_of_another(given, source, env, algorithm, tmp_path):
    theirs = ludus.load_policy(given / source)
    trainer = ludus.Trainer(algorithm, env_of(env), settings(init_from=str(given / source)), run_dir=tmp_path / "run")
    seen = observations(theirs)
    np.testing.assert_allclose(trainer.policy(seen), theirs(seen), rtol=1e-5)
    for ours, saved in zip(*(jax.tree.leaves(x.state.observations) for x in (trainer.policy, theirs)), strict=True):
        np.testing.assert_array_equal(ours, saved)  # statistics too
    optimizer = trainer.learner.learner.optimizers if algorithm is SAC else trainer.learner.optimizer
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(optimizer))
    trainer.train(total_steps=256)
    saved = read_config(tmp_path / "run")
    digest = hashlib.sha256((given / source / FINAL).read_bytes()).hexdigest()
    assert (saved["init_from"], saved["init_from_sha256"]) == (str(given / source), digest)
    np.testing.assert_allclose(untrained(tmp_path / "run")(seen), theirs(seen), rtol=1e-5)


def test_the_critic_comes_along_with_a_run_and_not_with_a_file(given):
    fresh = ludus.Trainer(PPO, env_of("CartPole-v1"), settings()).critic
    seen = observations(fresh)
    for source, expected in (
        (given / "cartpole", load_critic(given / "cartpole")),
        (given / "cartpole" / FINAL, None),
        (given / "cartpole-clone", None),
    ):
        critic = ludus.Trainer(PPO, env_of("CartPole-v1"), settings(init_from=str(source))).critic
        values = critic(seen)
        if expected is not None:
            np.testing.assert_allclose(values, expected(seen), rtol=1e-5)
            assert float(critic.state.returns.count) > 0
        else:
            assert float(critic.state.returns.count) == 0


class LongCartPole(CartPole):
    """The same spaces, another task."""

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        return state, step._replace(reward=10 * step.reward)


def test_another_environment_of_the_same_spaces_and_other_settings(given):
    algorithm = dataclasses.replace(PPO, learning_rate=1e-4, batch_size=32, gamma=0.9)
    env = ludus.make_env(LongCartPole, num_envs=2)
    trainer = ludus.Trainer(algorithm, env, settings(init_from=str(given / "cartpole"), seed=7))
    theirs = ludus.load_policy(given / "cartpole")
    np.testing.assert_array_equal(trainer.policy(observations(theirs)), theirs(observations(theirs)))
    assert trainer.train(total_steps=64).steps == 64


@pytest.mark.requirement("S2.24")
def test_a_resumed_run_has_no_need_of_it_any_more(given, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "policy.safetensors").write_bytes((given / "cartpole" / FINAL).read_bytes())
    often, algorithm = ludus.CheckpointOptions(every_iterations=2), dataclasses.replace(PPO, anneal_learning_rate=False)

    def trainer(name):
        words = settings(init_from=str(source / "policy.safetensors"), checkpoint=often)
        return ludus.Trainer(algorithm, env_of("CartPole-v1"), words, run_dir=tmp_path / name)

    trainer("straight").train(total_steps=384)
    trainer("broken").train(total_steps=192)
    (source / "policy.safetensors").unlink()
    ludus.Trainer.resume(tmp_path / "broken", total_steps=384, verbose=False).train()
    assert differences(state_of(tmp_path / "straight"), state_of(tmp_path / "broken")) == []
    with pytest.raises(LudusError, match="init_from: cannot be changed in a resumed run"):
        ludus.Trainer.resume(tmp_path / "broken", init_from="elsewhere")


def test_sac_plays_the_given_policy_before_it_learns(given):
    words = settings(init_from=str(given / "pendulum-clone"))
    trainer = ludus.Trainer(SAC, env_of("Pendulum-v1"), words)
    before = trainer.policy
    learner, algorithm = trainer.state.learner, as_arrays(SAC)
    noise = algorithm.noise(algorithm.policy(learner), jax.random.key(0), (8, 4))
    assert not np.any(noise.is_warmup)  # no action is one of chance
    trainer.train(total_steps=64)
    for ours, theirs in zip(trainer.policy.state.parameters, before.state.parameters, strict=True):
        np.testing.assert_array_equal(ours, theirs)  # 64 steps are to be played first
    trainer.train(total_steps=128)
    assert trainer.record.updates == 64
    assert any(np.any(a != b) for a, b in zip(trainer.policy.state.parameters, before.state.parameters, strict=True))


def test_a_penalty_may_hold_ppo_near_what_it_began_with(given):
    algorithm = dataclasses.replace(PPO, kl_coef=1.0, kl_reference="start")
    trainer = ludus.Trainer(algorithm, env_of("CartPole-v1"), settings(init_from=str(given / "cartpole-clone")))
    theirs = ludus.load_policy(given / "cartpole-clone").state
    own = trainer.learner.penalty.reference
    used = [x.startswith("actor") for x in own.network.names]
    assert any(used)
    for ours, saved, is_actor in zip(own.parameters, theirs.parameters, used, strict=True):
        assert not is_actor or np.array_equal(ours, saved)
    assert trainer.train(total_steps=128).steps == 128


OTHER, RELU = ludus.MLP((8, 9)), ludus.MLP((8, 7), "relu")
CLONED_BY_PPO = "its policy, of algorithm=ppo, has the actor of ppo, and algorithm=sac has that of sac"


@pytest.mark.parametrize(("source", "env", "algorithm", "other", "said"), [
    ("cartpole", "Pendulum-v1", PPO, {}, "its observation space is Box"),
    ("pendulum", "Pendulum-v1", SAC, {}, CLONED_BY_PPO),
    ("pendulum-clone", "Pendulum-v1", PPO, {}, r"clone with algorithm\.actor=ppo"),
    ("cartpole", "CartPole-v1", PPO, {"network": OTHER}, "has the network MLP.*give it the same"),
    ("cartpole", "CartPole-v1", PPO, {"network": RELU}, "and this run has .*relu"),
    ("pendulum-clone", "Pendulum-v1", SAC, {"network": RELU}, "and this run has .*relu"),
    ("cartpole", "CartPole-v1", PPO, {"normalize_observations": False}, r"give algorithm\.normalize_observations=true"),
    ("cartpole", "CartPole-v1", PPO, {"normalize_returns": False}, "its critic .* normalize_returns=true.*final_actor"),
    ("nowhere", "CartPole-v1", PPO, {}, "there is no policy file"),
])  # fmt: skip
def test_what_does_not_fit_is_one_line_before_anything_is_written(given, source, env, algorithm, other, said, tmp_path):
    with pytest.raises(LudusError, match=f"^init_from=.*{source}.*{said}") as error:
        words = settings(init_from=str(given / source))
        ludus.Trainer(dataclasses.replace(algorithm, **other), env_of(env), words, run_dir=tmp_path / "run")
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_a_checksum_that_is_given_must_be_right(given):
    words = settings(init_from=str(given / "cartpole"), init_from_sha256="0" * 64)
    with pytest.raises(LudusError, match=r"the SHA-256 of .* is not 0000"):
        ludus.Trainer(PPO, env_of("CartPole-v1"), words).train(total_steps=64)
    with pytest.raises(LudusError, match="give init_from"):
        ludus.Settings(init_from_sha256="0" * 64)


def test_an_algorithm_that_cannot_take_a_policy_says_so(given):
    from own_algorithms import Reinforce

    with pytest.raises(LudusError, match="has the actor of ppo"):
        ludus.Trainer(Reinforce(), env_of("CartPole-v1"), settings(init_from=str(given / "cartpole")))
