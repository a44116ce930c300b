"""Networks: their shapes, their start, their gradients, and the seam between a module and its parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import CONTINUOUS, DISCRETE
from flax import nnx

from ludus.networks.action_scaling import to_environment
from ludus.networks.actor_critic import ActionHead, ActorCritic
from ludus.networks.builders import GRU, MLP
from ludus.networks.distributions import Categorical, Gaussian
from ludus.networks.layers import ACTIVATIONS
from ludus.networks.network import Leaves, Network, network_for
from ludus.networks.recurrence import memory_of, span
from ludus.networks.soft_actor_critic import ActorOf, CriticOf
from ludus.networks.vectors import as_vector
from ludus.spaces import Box, Discrete
from ludus.types import LudusError, Spec

KEY = jax.random.key(0)
OBS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)

NUMPY_ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def parameters_by_name(network: Network, parameters: Leaves) -> dict[str, np.ndarray]:
    return dict(zip(network.names, map(np.asarray, parameters), strict=True))


def moved(network: Network) -> Leaves:
    """Return parameters away from their start, so that no bias is zero."""
    generator = np.random.default_rng(3)
    start = network.initialize(KEY)
    return tuple(leaf + generator.normal(scale=0.5, size=leaf.shape).astype(np.float32) for leaf in start)


def counted(network: Network) -> Leaves:
    """Return parameters that are all different."""
    return network.unravel(jnp.arange(network.size, dtype=jnp.float32))


def outputs(network: Network, parameters: Leaves, obs: np.ndarray) -> tuple[Categorical | Gaussian, jax.Array]:
    """Distribution and value for a batch of observations."""

    @jax.jit
    def both(parameters, obs):
        module = network.merge(parameters)
        features = module.remember(module.initial_memory(len(obs)), obs)[1]
        return module.actor(features), module.critic(features)

    return both(parameters, obs)


@pytest.mark.requirement("S4.7")
def test_hidden_sizes_are_the_widths_of_the_layers_of_actor_and_critic():
    network = network_for(MLP([64, 128, 256]), DISCRETE)
    shapes = dict(zip(network.names, network.shapes, strict=True))
    for who, outputs in (("actor", 3), ("critic", 1)):
        layers = [shapes[f"{who}_torso/layers/{i}/kernel"] for i in range(3)]
        assert layers == [(3, 64), (64, 128), (128, 256)]
        assert shapes[f"{who}_head/layer/kernel" if who == "actor" else "critic_head/kernel"] == (256, outputs)


@pytest.mark.requirement("S4.7")
@pytest.mark.parametrize("apart", [(7,), (), (5, 4, 3)], ids=str)
def test_actor_and_critic_may_have_layers_of_their_own(apart):
    def widths(build, torso):
        network = network_for(build, CONTINUOUS)
        shapes = dict(zip(network.names, network.shapes, strict=True))
        return [shape[1] for name, shape in shapes.items() if name.startswith(torso) and name.endswith("kernel")]

    for config in (MLP((6, 4), critic_hidden_sizes=list(apart)), GRU(3, (6, 4), critic_hidden_sizes=list(apart))):
        assert widths(config, "actor_torso") == [6, 4]
        assert widths(config, "critic_torso") == list(apart)
    config = MLP((6, 4), "relu", apart)
    assert widths(ActorOf(config), "torso") == [6, 4]
    assert widths(CriticOf(config), "torso") == list(apart)
    assert network_for(MLP((6, 4)), CONTINUOUS).size == network_for(MLP((6, 4), "tanh", (6, 4)), CONTINUOUS).size


@pytest.mark.requirement("S4.7")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_activation_is_the_one_that_was_named(activation):
    network = network_for(MLP((5,), activation), DISCRETE)
    p = parameters_by_name(network, moved(network))
    hidden = OBS @ p["critic_torso/layers/0/kernel"] + p["critic_torso/layers/0/bias"]
    value = NUMPY_ACTIVATIONS[activation](hidden.astype(np.float64)) @ p["critic_head/kernel"] + p["critic_head/bias"]
    np.testing.assert_allclose(outputs(network, moved(network), OBS)[1], value[:, 0], atol=1e-5)


@pytest.mark.requirement("S1.2")
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS])
def test_outputs_equal_a_hand_written_forward_pass_for_any_batch_shape(spec):
    network = network_for(MLP((5, 7)), spec)
    parameters = moved(network)
    for shape in ((3,), (6, 3), (2, 3, 3)):
        obs = np.resize(OBS, shape)
        policy, log_std, value = oracles.Model(network).outputs(oracles.flat(parameters), obs)
        distribution, got = outputs(network, parameters, obs)
        np.testing.assert_allclose(distribution[0], policy, atol=1e-5)
        np.testing.assert_allclose(got, value, atol=1e-5)
        if log_std is not None:
            np.testing.assert_allclose(distribution.log_std, np.broadcast_to(log_std, policy.shape), rtol=1e-6)


@pytest.mark.requirement("S4.6")
def test_the_head_follows_from_the_action_space():
    for spec, kind in ((DISCRETE, Categorical), (CONTINUOUS, Gaussian)):
        network = network_for(MLP((5,)), spec)
        assert isinstance(outputs(network, network.initialize(KEY), OBS)[0], kind)


# Details 2, 23 to 26 and 32 of PPO: initialisation


def assert_orthogonal(kernel: np.ndarray, gain: float) -> None:
    narrow = kernel if kernel.shape[0] >= kernel.shape[1] else kernel.T
    np.testing.assert_allclose(narrow.T @ narrow, gain**2 * np.eye(narrow.shape[1]), atol=1e-5)


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS])
def test_weights_start_orthogonal_with_their_gains_and_biases_at_zero(spec):
    network = network_for(MLP((16, 8)), spec)
    p = parameters_by_name(network, network.initialize(KEY))
    for who in ("actor", "critic"):
        assert_orthogonal(p[f"{who}_torso/layers/0/kernel"], np.sqrt(2))
        assert_orthogonal(p[f"{who}_torso/layers/1/kernel"], np.sqrt(2))
    assert_orthogonal(p["actor_head/layer/kernel"], 0.01)
    assert_orthogonal(p["critic_head/kernel"], 1.0)
    assert all(not value.any() for name, value in p.items() if name.endswith("bias"))


def test_a_recurrent_unit_starts_orthogonal_with_gain_one():
    network = network_for(GRU(8, (4,)), DISCRETE)
    p = parameters_by_name(network, network.initialize(KEY))
    for part in ("actor_memory", "critic_memory"):
        assert_orthogonal(p[f"{part}/from_input/kernel"], 1.0)
        assert_orthogonal(p[f"{part}/from_memory/kernel"], 1.0)
        assert not p[f"{part}/from_input/bias"].any() and not p[f"{part}/from_memory/bias"].any()


def test_the_standard_deviation_starts_at_one_and_does_not_depend_on_the_observation():
    network = network_for(MLP((5,)), CONTINUOUS)
    parameters = network.initialize(KEY)
    assert not parameters_by_name(network, parameters)["actor_head/log_std"].any()
    policy, _ = outputs(network, tuple(leaf + 0.3 for leaf in parameters), OBS)
    np.testing.assert_allclose(policy.log_std, np.full((6, 2), 0.3), rtol=1e-6)
    assert len(np.unique(np.asarray(policy.mean)[:, 0])) == 6


def test_actor_and_critic_start_from_different_weights_and_so_do_different_keys():
    network = network_for(MLP((5,)), DISCRETE)
    p = parameters_by_name(network, network.initialize(KEY))
    assert (p["actor_torso/layers/0/kernel"] != p["critic_torso/layers/0/kernel"]).all()
    first, again, other = (network.ravel(network.initialize(key)) for key in (KEY, KEY, jax.random.key(1)))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.requirement("S3.9")
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS])
def test_gradients_do_not_leak_between_actor_and_critic(spec):
    network = network_for(MLP((5, 4)), spec)
    parameters = network.initialize(KEY)
    action = np.ones((6, *spec.action_space.shape), spec.action_space.dtype)

    @jax.jit
    def gradients(parameters):
        critic = jax.grad(lambda v: network.merge(v).critic(OBS).sum())(parameters)
        return critic, jax.grad(lambda v: network.merge(v).actor(OBS).log_prob(action).sum())(parameters)

    for who, gradient in zip(("critic", "actor"), gradients(parameters), strict=True):
        for name, slope in parameters_by_name(network, gradient).items():
            assert slope.any() == name.startswith(who), name


# Memory


@pytest.fixture(scope="module", params=[False, True], ids=["apart", "shared"])
def recurrent(request) -> tuple[Network, np.ndarray]:
    network = network_for(GRU(4, (5,), shared=request.param), DISCRETE)
    return network, moved(network)


def test_the_recurrent_unit_equals_a_hand_written_one(recurrent):
    network, parameters = recurrent
    memory = np.random.default_rng(4).normal(size=(6, 4)).astype(np.float32)
    for part in ("actor", "critic"):
        after, features = jax.jit(lambda v, part=part: memory_of(network.merge(v), part).remember(memory, OBS))(
            parameters
        )
        model = oracles.Model(network)
        expected = model.one_more(oracles.flat(parameters), memory, OBS, part)
        np.testing.assert_allclose(after, expected, atol=1e-6)
        np.testing.assert_array_equal(features, after)


def test_memory_is_kept_through_an_episode_and_cleared_after_its_end(recurrent):
    network, parameters = recurrent
    rng = np.random.default_rng(5)
    obs, memory = rng.normal(size=(7, 4, 3)).astype(np.float32), rng.normal(size=(4, 4)).astype(np.float32)
    ended = rng.random((7, 4)) < 0.3
    module, model, theta = network.merge(parameters), oracles.Model(network), oracles.flat(parameters)
    for part in ("actor", "critic"):
        seen = span(module, part, memory, obs, obs, ended, 3)
        expected, _ = model.through_time(theta, memory, obs, ended, part)
        np.testing.assert_allclose(seen.features, expected, atol=1e-5)
        np.testing.assert_allclose(seen.next_features, model.one_more(theta, expected, obs, part), atol=1e-5)
        before = np.concatenate([memory[None], np.where(ended[..., None], 0.0, expected)])
        np.testing.assert_allclose(seen.memories, before[[0, 3, 6, 7]], atol=1e-5)


def test_an_episode_starts_with_an_empty_memory_and_forgets_the_one_before(recurrent):
    network, parameters = recurrent
    module = network.merge(parameters)
    assert not module.initial_memory(3).any() and module.initial_memory(3).shape == (3, 4)
    obs, ended = np.resize(OBS, (5, 1, 3)), np.zeros((5, 1), bool)
    ended[2] = True
    features = span(module, "actor", jnp.full((1, 4), 0.7), obs, None, ended, 5).features
    fresh = span(module, "actor", module.initial_memory(1), obs[3:], None, ended[3:], 2).features
    np.testing.assert_allclose(features[3:], fresh, rtol=1e-6)


# The seam between a module and its parameters


@pytest.mark.parametrize("build", [MLP((5, 7)), GRU(4, (5,)), MLP(())])
def test_parameters_and_their_vector_turn_into_each_other(build):
    network = network_for(build, CONTINUOUS)
    vector = jnp.arange(network.size, dtype=jnp.float32)
    parameters = network.unravel(vector)
    assert [leaf.shape for leaf in parameters] == [leaf.shape for leaf in network.initialize(KEY)]
    np.testing.assert_array_equal(network.ravel(parameters), vector)


def test_names_lead_to_the_parameters_they_name():
    network = network_for(MLP(tuple(range(2, 14))), CONTINUOUS)  # a dozen layers: names must not sort as text
    parameters = counted(network)
    module, p = network.merge(parameters), parameters_by_name(network, parameters)
    assert len(set(network.names)) == len(network.names)
    for i, layer in enumerate(module.critic_torso.layers):
        np.testing.assert_array_equal(layer.kernel[...], p[f"critic_torso/layers/{i}/kernel"])
        np.testing.assert_array_equal(layer.bias[...], p[f"critic_torso/layers/{i}/bias"])
    np.testing.assert_array_equal(module.actor_head.log_std[...], p["actor_head/log_std"])


def test_equal_arguments_give_the_same_network_object():
    again = Spec(Box(-10.0, 10.0, (3,)), Discrete(3), DISCRETE.num_envs)
    assert network_for(MLP((5,)), DISCRETE) is network_for(MLP([5]), again)
    assert network_for(MLP((5,)), DISCRETE) is not network_for(MLP((6,)), DISCRETE)
    assert network_for(MLP((5,)), DISCRETE) is not network_for(MLP((5,)), CONTINUOUS)


def test_only_networks_with_memory_say_so():
    assert network_for(GRU(4, (5,)), DISCRETE).has_memory
    assert not network_for(MLP((5,)), DISCRETE).has_memory


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MLP((0,)), "hidden_sizes"),
        (lambda: MLP((64.0,)), "hidden_sizes"),
        (lambda: GRU(hidden_sizes=(-1,)), "hidden_sizes"),
        (lambda: MLP(critic_hidden_sizes=(8, 0)), r"critic_hidden_sizes=\[8, 0\]: every size must be a positive"),
        (lambda: MLP(activation="sigmoid"), "activation='sigmoid'"),
        (lambda: GRU(memory_size=0), "memory_size=0"),
        (lambda: network_for(lambda spec, rngs: "no module", DISCRETE), "flax.nnx.Module"),
        (
            lambda: network_for(lambda spec, rngs: {}["size"], DISCRETE),
            "network=<lambda>: raised KeyError: 'size' when it",
        ),
        (
            lambda: network_for(lambda: 3, DISCRETE),
            r"raised TypeError: .* was built; a network is called with \(spec, ",
        ),
    ],
)
def test_a_network_that_cannot_be_built_is_refused_by_name(build, message):
    with pytest.raises(LudusError, match=message):
        build()


# Spaces at both ends


def test_discrete_observations_become_one_hot_and_boxes_are_flattened():
    np.testing.assert_array_equal(as_vector(Discrete(3), jnp.array([2, 0])), [[0, 0, 1], [1, 0, 0]])
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 2, 3, 2)
    parameters = as_vector(Box(0.0, 255.0, (3, 2), "uint8"), pixels)
    assert parameters.dtype == jnp.float32
    np.testing.assert_allclose(parameters, pixels.reshape(2, 2, 6) / 255, rtol=1e-6)
    network = network_for(MLP((5,)), Spec(Discrete(3), Discrete(2), 4))
    assert outputs(network, network.initialize(KEY), np.array([0, 1, 2, 0]))[1].shape == (4,)


def test_discrete_actions_reach_the_environment_as_they_are():
    actions = jnp.array([0, 2, 1])
    np.testing.assert_array_equal(to_environment(Discrete(3), actions), actions)


@pytest.mark.requirement("S4.6")
def test_bounded_actions_are_clipped_and_mapped_onto_an_asymmetric_box():
    box = Box((-0.3, 10.0), (2.0, 30.0), (2,))
    samples = jnp.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0], [-50.0, 50.0]])
    got = to_environment(box, samples)
    np.testing.assert_allclose(got, [[-0.3, 10.0], [0.85, 25.0], [2.0, 30.0], [-0.3, 30.0]], rtol=1e-6)
    assert got.dtype == jnp.float32


def test_actions_take_the_shape_of_their_box():
    box = Box(-1.0, 1.0, (2, 3))
    assert to_environment(box, jnp.zeros((5, 4, 6))).shape == (5, 4, 2, 3)


def test_unbounded_actions_are_left_alone_and_half_bounded_ones_only_clipped():
    samples = jnp.array([[-50.0, -50.0], [50.0, 50.0]])
    np.testing.assert_array_equal(to_environment(Box(-np.inf, np.inf, (2,)), samples), samples)
    half = Box((0.0, -np.inf), (np.inf, 7.0), (2,))
    np.testing.assert_array_equal(to_environment(half, samples), [[0.0, -50.0], [50.0, 7.0]])


@pytest.mark.requirement("S4.6")
def test_every_entry_of_a_box_is_mapped_by_its_own_bounds_whatever_its_neighbours_have():
    box = Box((-100.0, -np.inf, 0.0, 10.0), (100.0, np.inf, np.inf, 30.0), (2, 2))
    samples = jnp.array([[0.6, 7.0, -3.0, -1.0], [5.0, -50.0, 4.0, 0.5]])
    got = to_environment(box, samples)
    np.testing.assert_allclose(got, [[[60.0, 7.0], [0.0, 10.0]], [[100.0, -50.0], [4.0, 25.0]]], rtol=1e-6)


def test_an_extreme_action_never_leaves_its_box():
    rng = np.random.default_rng(0)
    low = rng.uniform(-5, 5, 200).astype(np.float32)
    box = Box.from_arrays(low, low + rng.uniform(0.1, 5, 200).astype(np.float32))
    low, high = box.bounds
    for extreme in (-1.0, 1.0):
        action = to_environment(box, jnp.full(200, extreme))
        assert (low <= action).all() and (action <= high).all()


# A network of the user's own


class Shared(ActorCritic):
    """One layer that actor and critic share, computed once as features."""

    def __init__(self, spec: Spec, rngs: nnx.Rngs):
        self.torso = nnx.Linear(3, 6, rngs=rngs)
        self.head = ActionHead(6, spec.action_space, rngs=rngs)
        self.value = nnx.Linear(6, 1, rngs=rngs)

    def remember(self, memory, obs):
        return memory, nnx.relu(self.torso(obs))

    def actor(self, features):
        return self.head(features)

    def critic(self, features):
        return self.value(features)[..., 0]


@pytest.mark.requirement("S4.4")
@pytest.mark.requirement("S4.5")
@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS])
def test_a_module_of_the_users_own_is_split_and_merged_like_any_other(spec):
    network = network_for(Shared, spec)
    parameters = moved(network)
    p = parameters_by_name(network, parameters)
    features = np.maximum(OBS @ p["torso/kernel"] + p["torso/bias"], 0)
    policy, value = outputs(network, parameters, OBS)
    np.testing.assert_allclose(value, (features @ p["value/kernel"] + p["value/bias"])[:, 0], atol=1e-5)
    np.testing.assert_allclose(policy[0], features @ p["head/layer/kernel"] + p["head/layer/bias"], atol=1e-5)
