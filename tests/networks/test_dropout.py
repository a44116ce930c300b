"""Dropout is off while acting and in the policy's update, and on where a gradient pass asks for it."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DISCRETE, random_state, small_ppo, told
from flax import nnx

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.networks.actor_critic import MemoryActorCritic
from ludus.networks.dropout import with_dropout
from ludus.networks.layers import Torso
from ludus.networks.memory import TransformerMemory
from ludus.networks.network import network_for
from ludus.networks.recurrence import memory_of, span
from ludus.runtime.packing import choose_rows
from ludus.types import Rollout, Transition

KEY, STEPS = jax.random.key(0), 8


@dataclass(frozen=True)
class Dropping:
    """Builds an actor-critic on transformers that drop half of what they add."""

    rate: float = 0.5

    def __call__(self, spec, rngs):
        unit = partial(self._unit, self.rate)
        return MemoryActorCritic(spec, unit, lambda part, inputs, rng: Torso(inputs, (), "tanh", rng), False, rngs=rngs)

    @staticmethod
    def _unit(rate, inputs, generator):
        sizes = {"model_dim": 8, "num_layers": 2, "num_heads": 2, "feedforward_dim": 8, "window": 4}
        return TransformerMemory(inputs, **sizes, dropout=rate, generator=generator)


def rows(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(STEPS, DISCRETE.num_envs, 3)).astype(np.float32), rng.random((STEPS, 4)) < 0.1


def values(network, parameters, obs, ended, key=None):
    module = network.merge(parameters)
    module = module if key is None else with_dropout(module, key)
    memory = memory_of(module, "critic").initial_memory(obs.shape[1])
    return module.critic(span(module, "critic", memory, obs, None, ended, len(obs)).features)


def test_a_pass_with_dropout_follows_its_key_and_one_without_knows_none():
    network, plain = network_for(Dropping(), DISCRETE), network_for(Dropping(0.0), DISCRETE)
    parameters, (obs, ended) = network.initialize(KEY), rows()
    run = jax.jit(partial(values, network))
    without = run(parameters, obs, ended)
    np.testing.assert_array_equal(without, jax.jit(partial(values, plain))(parameters, obs, ended))
    one, same, other = (run(parameters, obs, ended, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (np.abs(one - other) > 1e-4).mean() > 0.9 and (np.abs(one - without) > 1e-4).mean() > 0.9
    np.testing.assert_array_equal(run(parameters, obs, ended), without, err_msg="nothing is left switched on")


def test_layers_and_calls_drop_different_entries():
    network = network_for(Dropping(), DISCRETE)
    module = with_dropout(network.merge(network.initialize(KEY)), KEY)
    layers = [layer for _, layer in nnx.iter_modules(module) if isinstance(layer, nnx.Dropout)]
    x = jnp.ones(200)
    drawn = [np.asarray(layer(x)) for layer in layers for _ in range(2)]
    assert len(drawn) == 8  # two blocks each of actor and critic, twice
    assert len({tuple(row.tolist()) for row in drawn}) == len(drawn)
    np.testing.assert_array_equal(np.unique(drawn), [0.0, 2.0])
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.1), "what is left is scaled up"


@pytest.mark.slow
def test_a_gradient_pass_of_values_learns_with_dropout():
    network, (obs, ended) = network_for(Dropping(0.2), DISCRETE), rows()
    target = obs.sum(axis=-1)

    def loss(parameters, key):
        return jnp.mean(jnp.square(values(network, parameters, obs, ended, key) - target))

    @jax.jit
    def step(parameters, key):
        return jax.tree.map(lambda p, g: p - 0.02 * g, parameters, jax.grad(loss)(parameters, key))

    parameters = network.initialize(KEY)
    before = float(loss(parameters, None))
    for number in range(150):
        parameters = step(parameters, jax.random.key(number))
    assert float(loss(parameters, None)) < 0.5 * before


@pytest.mark.slow
@pytest.mark.requirement("S0.16")
def test_dropout_is_off_while_acting_and_in_the_policys_update_and_on_while_the_critic_is_fitted():
    """So ratios are 1, and a policy that was built with dropout learns what one without it does."""
    ends = []
    for rate in (0.0, 0.5):
        ppo = small_ppo(network=Dropping(rate), learning_rate=0.01, max_grad_norm=1e9)
        state = random_state(ppo, DISCRETE, np.random.default_rng(0))
        policy, (obs, ended) = ppo.policy(state), rows()
        start, samples = ppo.initial_memory(policy, 4), []
        act, memory = jax.jit(lambda *inputs, ppo=ppo: ppo.act(*inputs, "explore")), start
        for t in range(STEPS):
            memory, _, extras = act(policy, memory, obs[t], ppo.noise(policy, jax.random.key(t), (4,)))
            memory = choose_rows(ended[t], start, memory)
            samples.append(extras)
        extras = jax.tree.map(lambda *x: jnp.stack(x), *samples)
        reward = np.random.default_rng(1).normal(size=ended.shape).astype(np.float32)
        steps = Transition(obs, extras["sample"], reward, ended, np.zeros_like(ended), rows(1)[0], extras)
        rollout = Rollout(steps, start, is_start=True)
        ends.append(jax.jit(told)(as_arrays(ppo), state, rollout, KEY))
        assert abs(float(ends[-1][1]["approx_kl"])) < 1e-6
    moved = [np.abs(a - b).max() for a, b in zip(*(end[0].parameters for end in ends), strict=True)]
    owners = ends[0][0].network.owners
    assert max(x for x, owner in zip(moved, owners, strict=True) if owner == "actor") < 1e-6
    assert max(x for x, owner in zip(moved, owners, strict=True) if owner == "critic") > 1e-3


def test_a_network_with_dropout_switched_on_is_refused_by_name():
    class On(MemoryActorCritic):
        def __init__(self, spec, rngs):
            super().__init__(
                spec, partial(Dropping._unit, 0.5), lambda p, i, g: Torso(i, (), "tanh", g), False, rngs=rngs
            )
            with_dropout(self, KEY)

    with pytest.raises(ludus.LudusError, match="is a Dropout, which is not supported"):
        network_for(On, DISCRETE)
