"""The chain that PPO and SAC share: clipping, Adam in closed form, annealing, and the user's own in Adam's place."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import DISCRETE, random_rollout, random_state, small_ppo, update

import ludus
from ludus.algorithms.optimizer import Optimizer, entries_of_critic, over_vector
from ludus.networks.network import network_for


def adam_by_hand(gradients: np.ndarray, rate: float, most: float, epsilon: float) -> np.ndarray:
    """Clipped Adam in float64: the sum of all changes."""
    mu = nu = total = np.zeros(gradients.shape[1])
    for count, gradient in enumerate(gradients.astype(np.float64), start=1):
        gradient = gradient * min(1.0, most / np.linalg.norm(gradient))
        mu, nu = 0.9 * mu + 0.1 * gradient, 0.999 * nu + 0.001 * gradient**2
        total = total - rate * (mu / (1 - 0.9**count)) / (np.sqrt(nu / (1 - 0.999**count)) + epsilon)
    return total


@pytest.mark.parametrize("most", [0.1, 100.0])
@pytest.mark.parametrize("annealing", [1.0, 0.25])
def test_adam_follows_its_closed_form_on_clipped_gradients(most, annealing):
    gradients = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    optimizer = Optimizer(jnp.float32(0.01), None, jnp.float32(annealing), jnp.float32(most), epsilon=1e-5)
    state, total = optimizer.init(np.zeros(7, np.float32)), np.zeros(7, np.float32)
    for gradient in gradients:
        change, state = optimizer.update(jnp.asarray(gradient), state, None)
        total = total + change
    np.testing.assert_allclose(total, adam_by_hand(gradients, 0.01 * annealing, most, 1e-5), rtol=1e-5, atol=1e-7)


def test_a_saved_state_is_the_same_with_and_without_clipping_and_annealing():
    like = np.zeros(3, np.float32)
    for optimizer in (Optimizer(1e-3), Optimizer(1e-3, None, jnp.float32(0.5), jnp.float32(1.0))):
        state = optimizer.update(jnp.ones(3), optimizer.init(like), None)[1]
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
        assert paths == [".count", ".mu", ".nu"]


def test_a_gradient_of_zeros_stays_finite_even_if_nothing_may_pass():
    optimizer = Optimizer(1e-3, max_norm=jnp.float32(0.0))
    change, _ = optimizer.update(jnp.zeros(3), optimizer.init(np.zeros(3, np.float32)), None)
    np.testing.assert_array_equal(change, np.zeros(3))


def test_a_users_transformation_sees_clipped_gradients_and_parameters_as_the_module_holds_them():
    network = network_for(ludus.MLP((4,)), DISCRETE)
    parameters, rng = network.initialize(jax.random.key(0)), np.random.default_rng(1)
    gradient = jnp.asarray(rng.normal(size=network.size).astype(np.float32))
    seen = []

    def update(updates, state, params):
        seen.append((updates, params))
        return jax.tree.map(lambda g, p: -g - p, updates, params), state

    own = optax.GradientTransformation(lambda params: jax.tree.map(jnp.shape, params), update)
    optimizer = Optimizer(1.0, over_vector(own, network), jnp.float32(0.5), jnp.float32(1.0))
    change, _ = optimizer.update(gradient, optimizer.init(parameters), parameters)
    ((clipped, held),) = seen
    assert jax.tree.structure(clipped) == jax.tree.structure(held) == network.treedef
    clipped = network.ravel(jax.tree.leaves(clipped))
    np.testing.assert_allclose(clipped, gradient / np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_allclose(change, -0.5 * (clipped + network.ravel(parameters)), rtol=1e-5, atol=1e-7)


@pytest.mark.requirement("S0.4")
def test_entries_apart_have_an_adam_a_step_size_and_a_norm_of_their_own():
    gradients = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    gradients[:, 3:] *= 100.0
    apart = np.arange(7) >= 3
    optimizer = Optimizer(jnp.where(apart, 0.5, 0.01), None, 1.0, jnp.float32(0.3), 1e-5, jnp.asarray(apart))
    state, total = optimizer.init(np.zeros(7, np.float32)), np.zeros(7, np.float32)
    for gradient in gradients:
        change, state = optimizer.update(jnp.asarray(gradient), state, None)
        total = total + change
    one, other = (adam_by_hand(gradients[:, part], rate, 0.3, 1e-5) for part, rate in ((~apart, 0.01), (apart, 0.5)))
    np.testing.assert_allclose(total, np.concatenate([one, other]), rtol=1e-5, atol=1e-7)


@pytest.mark.requirement("S0.4")
@pytest.mark.parametrize("network", [ludus.MLP((5,)), ludus.GRU(4, (5,))], ids=["mlp", "gru"])
def test_a_step_size_of_zero_leaves_actor_or_critic_as_it_was_bit_for_bit(network):
    rng = np.random.default_rng(0)
    for rates, frozen in (((0.0, 0.01), "actor"), ((0.01, 0.0), "critic")):
        ppo = small_ppo(network=network, learning_rate=rates[0], critic_learning_rate=rates[1])
        state = random_state(ppo, DISCRETE, rng)
        new = update(ppo, state, random_rollout(state, rng), jax.random.key(0))[0]
        for name, owner, a, b in zip(
            state.network.names, state.network.owners, state.parameters, new.parameters, strict=True
        ):
            assert np.array_equal(a, b) == (owner == frozen), name


def test_the_critics_entries_are_those_that_only_it_depends_on():
    for builder in (ludus.MLP((5,)), ludus.GRU(4, (5,), shared=True), ludus.Transformer(4, 8, 1, 2, 8)):
        network = network_for(builder, DISCRETE)
        named = np.repeat([name.startswith("critic") for name in network.names], network.sizes)
        np.testing.assert_array_equal(entries_of_critic(network), named)


def test_a_step_size_for_a_critic_without_anything_of_its_own_is_refused():
    class Shared(ludus.ActorCritic):
        def __init__(self, spec, rngs):
            from flax import nnx

            self.layer = nnx.Linear(3, 3, rngs=rngs)

        def actor(self, features):
            from ludus.networks.distributions import Categorical

            return Categorical(self.layer(features))

        def critic(self, features):
            return self.layer(features).sum(-1)

    with pytest.raises(ludus.LudusError, match=r"critic_learning_rate=0\.1: Shared has no parameters"):
        small_ppo(network=Shared, critic_learning_rate=0.1).validate(DISCRETE)
