"""SAC that imitates too: at weight 0 it is SAC, at a large one a clone, and between them the sum of both losses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sac_cases import SPEC, random_rollout

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.networks.action_scaling import from_environment
from ludus.runtime.compilation import compiler_options, jit
from ludus.runtime.demonstrations import from_arrays
from ludus.spaces import Discrete
from ludus.training.state_arrays import differences
from ludus.training.verify import state_of
from ludus.types import LudusError, Spec

SMALL = {
    "batch_size": 16,
    "replay_size": 64,
    "unroll_length": 4,
    "learning_starts": 0,
    "updates_per_step": 0.25,
    "network": ludus.MLP((6, 5), "relu"),
}
NEAR_ZERO = np.array([0.1, -0.2, 0.3], np.float32)


@pytest.fixture
def shown(tmp_path):
    """Forty steps in five episodes: one action everywhere, in the environment's units; always one sight if asked."""

    def write(one_sight=False):
        rng = np.random.default_rng(1)
        obs = np.tile(NEAR_ZERO, (40, 1)) if one_sight else rng.normal(size=(40, 3)).astype(np.float32)
        ends = np.arange(40) % 8 == 7
        action = np.tile(np.float32([1.5, 0.2]), (40, 1))
        made = from_arrays(SPEC.observation_space, SPEC.action_space, obs, action, terminated=ends)
        path = tmp_path / f"demos{one_sight}.safetensors"
        if not path.exists():
            ludus.write_demonstrations(made, path)
        return str(path)

    return write


def told(algorithm, state, rollout, key):
    made = algorithm.update(state, rollout, key)
    return made.state, made.metrics, made.updates, made.gradient


updated = jit(told, compiler_options(0))  # in haste, as for a short run


def after(algorithm, count, state=None, seed=0):
    rng = np.random.default_rng(seed)
    state = algorithm.init(jax.random.key(0), SPEC) if state is None else state
    for number in range(count):
        state, *rest = updated(as_arrays(algorithm), state, random_rollout(rng), jax.random.key(number))
    return state, *rest


@pytest.mark.slow
@pytest.mark.requirement("S2.24")
def test_without_weight_it_is_sac(shown):
    sac, metrics, updates, _ = after(ludus.SAC(**SMALL), 5)
    both, others, count, _ = after(ludus.BCSAC(demonstrations=shown(), imitation=0.0, **SMALL), 5)
    assert int(updates) == int(count) == 3
    for ours, theirs in zip(jax.tree.leaves(sac), jax.tree.leaves(both.sac), strict=True):
        if not jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert others.keys() - metrics.keys() == {"imitation", "nll", "action_error"}
    np.testing.assert_allclose(metrics["policy_loss"], others["policy_loss"], rtol=1e-5)


def log_density(state, action):
    """Of the one action that is demonstrated, in float64, as the actor has it where that is done."""
    chosen = state.networks.actor.merge(state.learner.parameters.actor)(jnp.asarray(NEAR_ZERO)[None])
    mean, deviation = np.float64(chosen.mean[0]), np.maximum(np.exp(np.float64(chosen.log_std[0])), 0.05)
    raw = np.arctanh(action)
    density = -0.5 * ((raw - mean) / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)
    return (density - np.log(1 - action**2)).sum()


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.1, 40.0])
def test_the_second_term_is_the_demonstrations_likelihood_in_the_size_of_the_values(shown, size):
    """Everything demonstrated is one and the same, so that chance has no part in it."""
    changes = SMALL | {"updates_per_step": 1 / 12, "learning_rate": 0.0}
    algorithm = ludus.BCSAC(demonstrations=shown(one_sight=True), imitation=0.5, **changes)
    state = algorithm.init(jax.random.key(0), SPEC)
    learner = state.sac.learner
    names = state.sac.networks.critic.names
    flat = [jnp.zeros_like(x) for x in learner.parameters.critics]  # critics that value everything alike
    critics = tuple(x + size if name == "head/bias" else x for name, x in zip(names, flat, strict=True))
    assert "head/bias" in names
    parameters = learner.parameters._replace(critics=critics)
    start = dataclasses.replace(state.sac, learner=learner._replace(parameters=parameters))
    _, plain, *_ = after(ludus.SAC(**changes), 1, start)
    made, metrics, updates, gradient = after(algorithm, 1, dataclasses.replace(state, sac=start))
    action = from_environment(SPEC.action_space, np.float32([1.5, 0.2]))
    expected = -log_density(made.sac, np.float64(action))
    assert int(updates) == 1
    np.testing.assert_allclose(float(metrics["nll"]), expected, rtol=1e-4)
    added = float(metrics["policy_loss"] - plain["policy_loss"])
    np.testing.assert_allclose(added, 0.5 * max(size, 1.0) * expected, rtol=1e-3)
    assert any(np.abs(x).max() > 0 for x in gradient.actor)


@pytest.mark.requirement("S2.24")
@pytest.mark.parametrize(
    "network", [ludus.MLP((6, 5), "relu"), pytest.param(ludus.GRU(4, (5,)), marks=pytest.mark.slow)]
)
def test_a_large_weight_clones(shown, network):
    """With a memory too, where whole segments are drawn; SAC alone goes where its values lead it."""
    has_memory = not isinstance(network, ludus.MLP)
    more = {"segment_length": 4, "burn_in": 0} if has_memory else {}
    changes = SMALL | more | {"network": network, "learning_rate": 0.01, "updates_per_step": 1.0}
    made = {
        weight: after(ludus.BCSAC(demonstrations=shown(), imitation=weight, **changes), 25) for weight in (0.0, 20.0)
    }
    assert float(made[20.0][1]["action_error"]) < 0.002 < 0.1 < float(made[0.0][1]["action_error"])
    assert float(made[20.0][1]["nll"]) < float(made[0.0][1]["nll"]) - 2.0


@pytest.mark.slow
@pytest.mark.requirement("S2.21", "S2.24")
def test_a_run_resumes_bit_by_bit_with_the_demonstrations_that_it_began_with(tmp_path):
    env = ludus.make_env("Pendulum-v1", num_envs=2)
    rng = np.random.default_rng(0)

    def write(seed):
        obs = env.observation_space.low + np.random.default_rng(seed).random((24, 3)) * 0.5
        action = rng.uniform(-2, 2, (24, 1)).astype(np.float32)
        shown = from_arrays(env.observation_space, env.action_space, obs, action, truncated=np.arange(24) % 12 == 11)
        ludus.write_demonstrations(shown, tmp_path / "demos.safetensors")

    def trainer(name):
        changes = {"batch_size": 8, "replay_size": 64, "unroll_length": 4, "learning_starts": 8}
        network = ludus.MLP((8,), "relu")
        path = str(tmp_path / "demos.safetensors")
        algorithm = ludus.BCSAC(demonstrations=path, network=network, **changes)
        settings = ludus.Settings(
            verbose=False,
            eval_frequency=0,
            eval_episodes_final=0,
            record_behaviour=False,
            checkpoint=ludus.CheckpointOptions(every_iterations=4),
        )
        return ludus.Trainer(algorithm, env, settings, run_dir=tmp_path / name)

    write(1)
    trainer("straight").train(total_steps=64)
    trainer("broken").train(total_steps=32)
    (tmp_path / "demos.safetensors").unlink()
    write(2)
    ludus.Trainer.resume(tmp_path / "broken", env=env, total_steps=64, verbose=False).train()
    assert differences(*(state_of(tmp_path / name) for name in ("straight", "broken"))) == []


def test_mistakes_are_one_line(shown):
    cases = [
        (ludus.BCSAC(), SPEC, r"algorithm\.demonstrations: required"),
        (ludus.BCSAC(demonstrations="nowhere"), SPEC, "nowhere: no such file"),
        (ludus.BCSAC(demonstrations=shown()), Spec(SPEC.action_space, SPEC.action_space, 1), "observation space"),
        (ludus.BCSAC(demonstrations=shown(True)), Spec(SPEC.observation_space, Discrete(2), 1), "try PPO"),
    ]
    for algorithm, spec, said in cases:
        with pytest.raises(LudusError, match=said) as error:
            algorithm.validate(spec)
        assert "\n" not in str(error.value)
    with pytest.raises(LudusError, match=r"algorithm.imitation=-1: must be at least 0"):
        ludus.BCSAC(imitation=-1)
    with pytest.raises(LudusError, match=r"imitation_batch_size=9: 2 devices cannot share it evenly"):
        ludus.BCSAC(imitation_batch_size=9).check_devices(SPEC, 2)
