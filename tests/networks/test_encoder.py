"""Observations of every space as vectors, and images through convolutions, against float64."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ludus.networks.builders import GRU, MLP
from ludus.networks.encoder import Encoder, NatureCNN, convolve, is_image
from ludus.networks.network import network_for
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, unflatten
from ludus.types import Spec

RNG = np.random.default_rng(0)
IMAGE = Box(0.0, 255.0, (36, 44, 2), "uint8")


def generator() -> np.random.Generator:
    return np.random.default_rng(7)


def parameters(module) -> int:
    from flax import nnx

    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))


@pytest.mark.parametrize(
    ("space", "value", "vector"),
    [
        (Discrete(3), 2, [0, 0, 1]),
        (Discrete(3, start=-1), -1, [1, 0, 0]),
        (MultiDiscrete([2, 3]), [1, 0], [0, 1, 1, 0, 0]),
        (MultiDiscrete([[2], [3]], start=[[5], [1]]), [[6], [3]], [0, 1, 0, 0, 1]),
        (MultiBinary((2, 2)), [[1, 0], [1, 1]], [1, 0, 1, 1]),
        (Box(-5.0, 5.0, (2, 1)), [[-2.5], [4.0]], [-2.5, 4.0]),
        (Box(0.0, 255.0, (3,), "uint8"), [0, 51, 255], [0, 0.2, 1.0]),
        (Box(0.0, 255.0, (2, 1, 1), "uint8"), [[[255]], [[0]]], [1.0, 0.0]),
        (Box(0.0, 1.0, (3,), "uint8"), [0, 1, 1], [0.0, 1.0, 1.0]),
        (Box(10.0, 20.0, (2,), "uint8"), [10, 15], [0.0, 0.5]),
        (
            Box((0.0, 100.0, 7.0, 0.0), (4.0, 200.0, 7.0, 255.0), (2, 2), "uint8"),
            [[1, 125], [7, 51]],
            [0.25] * 2 + [0, 0.2],
        ),
        (Box(-np.inf, np.inf, (1,), "uint8"), [51], [0.2]),
    ],
    ids=str,
)
def test_one_observation_becomes_the_vector_that_it_should_for_any_batch_shape(space, value, vector):
    encoder = Encoder(space, generator())
    assert encoder.outputs == len(vector) and parameters(encoder) == 0
    for shape in ((), (4,), (2, 3)):
        batch = np.broadcast_to(np.asarray(value, space.dtype), (*shape, *space.shape))
        got = encoder(jnp.asarray(batch))
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, np.broadcast_to(vector, (*shape, len(vector))), rtol=1e-6)


def test_parts_lie_side_by_side_in_the_order_of_their_names():
    space = Dict({"b": Tuple([Discrete(2, start=1), Box(0.0, 1.0, (2,))]), "a": MultiBinary(2)})
    obs = {"b": (jnp.array([2, 1]), jnp.array([[0.1, 0.2], [0.3, 0.4]])), "a": jnp.array([[1, 0], [0, 0]])}
    got = Encoder(space, generator())(obs)
    np.testing.assert_allclose(got, [[1, 0, 0, 1, 0.1, 0.2], [0, 0, 1, 0, 0.3, 0.4]], rtol=1e-6)


def test_a_plain_vector_costs_nothing():
    space = Box(-1.0, 1.0, (3,))
    encoder = Encoder(space, generator())
    assert not jax.make_jaxpr(lambda obs: encoder(obs))(jnp.zeros((5, 3))).eqns


# Images


def filtered(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, stride: int) -> np.ndarray:
    side = kernel.shape[0]
    windows = np.lib.stride_tricks.sliding_window_view(x, (side, side), axis=(1, 2))[:, ::stride, ::stride]
    return np.maximum(np.einsum("nhwcij,ijco->nhwo", windows, kernel) + bias, 0)


def nature(cnn: NatureCNN, pixels: np.ndarray, low: float = 0, width: float = 255) -> np.ndarray:
    """The network of Mnih et al. in float64, for pixels `[n, height, width, channels]`."""
    x = (pixels.astype(np.float64) - low) / width
    for layer, stride in zip(cnn.convolutions, (4, 2, 1), strict=True):
        x = filtered(x, np.asarray(layer.kernel[...], np.float64), np.asarray(layer.bias[...], np.float64), stride)
    kernel, bias = np.asarray(cnn.dense.kernel[...], np.float64), np.asarray(cnn.dense.bias[...], np.float64)
    return np.maximum(x.reshape(len(x), -1) @ kernel + bias, 0)


def test_images_go_through_the_network_of_mnih_et_al_and_are_divided_by_255_once():
    encoder = Encoder(IMAGE, generator())
    cnn = encoder.parts[0]
    shapes = [layer.kernel[...].shape for layer in cnn.convolutions]
    assert shapes == [(8, 8, 2, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    assert encoder.outputs == 512
    pixels = RNG.integers(256, size=(3, *IMAGE.shape), dtype=np.uint8)
    for layer in (*cnn.convolutions, cnn.dense):  # away from zero
        layer.bias[...] = jnp.asarray(RNG.normal(size=layer.bias[...].shape), jnp.float32)
    expected = nature(cnn, pixels)
    assert (expected > 0).any()
    np.testing.assert_allclose(encoder(pixels), expected, rtol=1e-4, atol=1e-4)
    stacked = encoder(jnp.asarray(pixels)[:, None])
    np.testing.assert_allclose(stacked[:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (16, 235)])
def test_images_of_other_bounds_are_mapped_onto_0_to_1(low, high):
    encoder = Encoder(Box(low, high, IMAGE.shape, "uint8"), generator())
    pixels = RNG.integers(low, high + 1, size=(3, *IMAGE.shape), dtype=np.uint8)
    expected = nature(encoder.parts[0], pixels, low, high - low)
    np.testing.assert_allclose(encoder(pixels), expected, rtol=1e-4, atol=1e-4)


def test_bounds_may_differ_from_pixel_to_pixel():
    high = np.where(np.arange(IMAGE.shape[0]) < 18, 1, 255)[:, None, None] * np.ones(IMAGE.shape)
    encoder = Encoder(Box.from_arrays(np.zeros(IMAGE.shape), high, "uint8"), generator())
    pixels = RNG.integers(high + 1, size=(3, *IMAGE.shape), dtype=np.uint8)
    np.testing.assert_allclose(encoder(pixels), nature(encoder.parts[0], pixels, 0, high), rtol=1e-4, atol=1e-4)


def plain(images, kernel, stride):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, kernel, (stride, stride), "VALID", dimension_numbers=layout)


@pytest.mark.parametrize(("side", "stride"), [(8, 4), (4, 2), (3, 1), (3, 2)])
def test_gradients_of_a_convolution_are_those_that_jax_derives(side, stride):
    images, kernel = RNG.normal(size=(3, 21, 18, 5)), RNG.normal(size=(side, side, 5, 7))  # strides leave an edge over
    slope = RNG.normal(size=jax.eval_shape(lambda *x: plain(*x, stride), images, kernel).shape)
    images, kernel, slope = (jnp.asarray(x, jnp.float32) for x in (images, kernel, slope))
    derived, ours = (jax.vjp(partial(f, stride=stride), images, kernel) for f in (plain, convolve))
    np.testing.assert_array_equal(ours[0], derived[0])
    for got, expected in zip(ours[1](slope), derived[1](slope), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices choose their own order of axes")
@pytest.mark.parametrize("shape", [(84, 84, 4), (3, 64, 64)], ids=["channels last", "channels first"])
def test_in_a_loop_every_convolution_has_the_order_of_axes_that_a_cpu_is_quick_with(shape):
    network = network_for(MLP((5,)), Spec(Box(0.0, 255.0, shape, "uint8"), Discrete(2), 1))

    def step(parameters, images):
        def loss(parameters):
            module = network.merge(parameters)
            return module.critic(module.remember((), images)[1]).sum()

        return tuple(p - 0.1 * d for p, d in zip(parameters, jax.grad(loss)(parameters), strict=True)), ()

    batches = jnp.zeros((3, 4, *shape), jnp.uint8)
    looped = jax.jit(lambda parameters, batches: jax.lax.scan(step, parameters, batches)[0])
    program = looped.lower(network.initialize(jax.random.key(0)), batches).compile().as_text()
    orders = re.findall(r" convolution\(.*dim_labels=([^, ]+)", program)
    assert len(orders) == 8 and set(orders) == {"b01f_01io->b01f"}  # 3 forwards, 3 kernels', 2 images' gradients


def test_channels_may_come_first():
    last, first = Encoder(IMAGE, generator()), Encoder(Box(0.0, 255.0, (2, 36, 44), "uint8"), generator())
    pixels = RNG.integers(256, size=(3, *IMAGE.shape), dtype=np.uint8)
    np.testing.assert_array_equal(last(pixels), first(np.moveaxis(pixels, -1, 1)))


def test_filters_start_orthogonal():
    for layer in NatureCNN(Box(0.0, 255.0, (84, 84, 4), "uint8"), generator()).convolutions:
        kernel = np.asarray(layer.kernel[...])
        flat = kernel.reshape(-1, kernel.shape[-1])
        np.testing.assert_allclose(flat.T @ flat, 2 * np.eye(flat.shape[1]), atol=1e-5)
        assert not layer.bias[...].any()


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((84, 84, 4), "uint8", True),
        ((4, 84, 84), "uint8", True),
        ((36, 36, 36), "uint8", True),
        ((210, 160, 3), "uint8", True),
        ((35, 84, 3), "uint8", False),
        ((3, 84, 35), "uint8", False),
        ((84, 84), "uint8", False),
        ((84, 84, 4), "float32", False),
    ],
)
def test_only_bytes_with_two_long_sides_are_images(shape, dtype, image):
    assert is_image(Box(0.0, 255.0, shape, dtype)) == image
    assert not is_image(Discrete(3))


def test_actor_and_critic_share_the_convolutions_and_nothing_else():
    space = Dict({"camera": IMAGE, "speed": Box(-1.0, 1.0, (2,))})
    network = network_for(MLP((5,)), Spec(space, Discrete(2), 1))
    obs = {"camera": RNG.integers(256, size=(2, *IMAGE.shape), dtype=np.uint8), "speed": np.ones((2, 2), np.float32)}

    def gradient(of, parameters):
        def total(parameters):
            module = network.merge(parameters)
            features = module.remember((), obs)[1]
            return module.critic(features).sum() if of == "critic" else module.actor(features).logits[:, 0].sum()

        return jax.grad(total)(parameters)

    parameters = network.initialize(jax.random.key(0))
    for who in ("actor", "critic"):
        for name, slope in zip(network.names, jax.jit(gradient, static_argnums=0)(who, parameters), strict=True):
            assert bool(np.asarray(slope).any()) == name.startswith((who, "encoder")), name


def test_a_recurrent_network_sees_every_space():
    space = Dict({"kind": Discrete(3, start=1), "bits": MultiBinary(2)})
    network = network_for(GRU(4, (5,)), Spec(space, Discrete(2), 1))
    obs = unflatten(space, [jnp.array([[0, 1]]), jnp.array([3])])
    module = network.merge(network.initialize(jax.random.key(0)))
    memory, features = module.remember(module.initial_memory(1), obs)
    assert memory.shape == features.shape == (1, 4) and np.asarray(features).any()
