"""The adapter that docs/en/jax_environments.md shows keeps the contract for gymnax's environments."""

import re

import jax
import numpy as np
import pytest
from places import DOCS

import ludus
from ludus.envs.registry import _registered

pytestmark = pytest.mark.slow

gymnax = pytest.importorskip("gymnax", reason="gymnax is not installed")
PAGE = DOCS / "jax_environments.md"


@pytest.fixture(scope="module")
def adapter():
    code = re.search(r"^```python\n(.*?)\nfor name in", PAGE.read_text(), re.DOTALL | re.MULTILINE).group(1)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 20
    names = {"__name__": "page"}
    exec(code, names)
    return names["Gymnax"]


@pytest.mark.parametrize("name", ["CartPole-v1", "Breakout-MinAtar", "Catch-bsuite", "MountainCarContinuous-v0"])
def test_steps_are_those_of_gymnax_before_its_own_reset(adapter, name):
    env, (raw, params) = adapter(name), gymnax.make(name)
    params = params.replace(max_steps_in_episode=min(params.max_steps_in_episode, 30))
    vars(env)["params"] = params
    step, ended, random = jax.jit(env.step), 0, np.random.default_rng(0)
    state, first = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(first, raw.reset_env(jax.random.key(0), params)[0])
    for t in range(100):
        space = env.action_space
        action = random.integers(space.n) if hasattr(space, "n") else random.uniform(-1, 1, 1).astype(np.float32)
        key = jax.random.key(t + 1)
        _, got = step(state, action, jax.random.split(key)[0])
        _, state, reward, terminated, truncated, info = raw.step(key, state, action, params)
        np.testing.assert_allclose(got.obs, info["final_observation"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got.reward, reward, rtol=1e-5)
        assert (got.terminated, got.truncated) == (terminated, truncated)
        ended += bool(terminated | truncated)
    assert ended >= 3


def test_an_adapted_environment_trains_and_is_truncated(adapter):
    before = dict(_registered)
    try:
        ludus.register_env("gymnax/MountainCar", lambda: adapter("MountainCar-v0"))
        env = ludus.make_env("gymnax/MountainCar", 2)
        assert env == ludus.make_env("gymnax/MountainCar", 2), "equal batches compile once"
        trainer = ludus.Trainer(
            ludus.PPO(batch_size=200, minibatch_size=200),
            env,
            ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0),
        )
        assert trainer.train(total_steps=800).episodes == 4
        assert (trainer.evaluate(2).lengths == 200).all()
    finally:
        _registered.clear()
        _registered.update(before)
