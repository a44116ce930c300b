"""Encoders of feature groups: attention against float64, order, masks, slopes, and flat against structured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ludus.networks.encoders import ENCODERS, LateFusion, LatentQuery, NoEncoder, TokenMLP
from ludus.networks.tokens import sources
from ludus.spaces import Box, Dict, Discrete, FeatureGroup, grouped, join_groups, split_groups, structured
from ludus.types import LudusError

EGO = FeatureGroup("ego", (2,))
CARS = FeatureGroup("cars", (2, 3, 4), valid=3, ordered=(1,))
POINTS = FeatureGroup("points", (3, 3), valid=0)
FLAT = grouped([POINTS, EGO, CARS])
"""Not in the order of the names, which a dict has."""
SMALL = {
    "mlp": TokenMLP((8, 6)),
    "lq": LatentQuery(depth=2, num_latents=3, model_dim=8, num_heads=2, feedforward_dim=8, rezero=False),
    "wayformer": LateFusion(depth=1, num_latents=2, model_dim=8, num_heads=2, feedforward_dim=8, rezero=False),
}
RNG = np.random.default_rng(0)


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


def observation() -> dict[str, np.ndarray]:
    """One observation in which a car and a point are missing, of one group numbers that are not zero."""
    parts = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in (("ego", (2,)), ("points", (3, 3)))}
    parts["cars"] = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    parts["cars"][..., 3] = [[1, 1, 1], [0, 1, 0]]
    parts["points"][:, 0] = [1, 0, 1]
    return parts


def changed(parts: dict[str, np.ndarray], **groups: np.ndarray) -> dict[str, np.ndarray]:
    return {**parts, **groups}


def with_noise(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same, with other numbers, huge ones too, where there is no token."""
    cars, points = parts["cars"].copy(), parts["points"].copy()
    cars[cars[..., 3] == 0, :3] = [[1e30, -7, 3], [np.nan, np.inf, 5]]
    points[1, 1:] = [-1e30, 9]
    return changed(parts, cars=cars, points=points)


def without(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same without a single car or point."""
    cars, points = parts["cars"].copy(), parts["points"].copy()
    cars[..., 3], points[:, 0] = 0, 0
    return changed(parts, cars=cars, points=points)


@pytest.fixture(scope="module", params=SMALL)
def outputs(request) -> dict[str, np.ndarray]:
    """What an encoder makes of several observations, all in one call, and of a dict of the first."""
    config, seen = SMALL[request.param], observation()
    other = seen["cars"].copy()
    other[..., :3] *= -2.0
    cases = {
        "as it is": seen,
        "points turned": changed(seen, points=seen["points"][::-1]),
        "cars turned": changed(seen, cars=seen["cars"][::-1]),
        "steps turned": changed(seen, cars=seen["cars"][:, ::-1]),
        "noise": with_noise(seen),
        "other car": changed(seen, cars=other),
        "without": without(seen),
        "without, noise": without(with_noise(seen)),
    }
    flat = np.stack([join_groups(FLAT, parts) for parts in cases.values()])
    encoder = config(FLAT, generator(), "bounds")
    made = jax.jit(encoder)(jnp.asarray(flat.reshape(2, -1, FLAT.shape[0])))
    assert made.shape == (2, len(cases) // 2, encoder.outputs) and made.dtype == jnp.float32
    as_dict = jax.jit(config(structured(FLAT), generator(), "bounds"))({k: jnp.asarray(x) for k, x in seen.items()})
    made = dict(zip(cases, np.asarray(made).reshape(len(cases), -1), strict=True))
    fewer = grouped([FeatureGroup("points", (2, 3), valid=0), EGO, CARS])
    only = join_groups(fewer, changed(seen, points=seen["points"][[0, 2]]))
    there = jax.jit(config(fewer, generator(), "bounds"))(jnp.asarray(only))
    return {**made, "dict": np.asarray(as_dict), "only points that are there": np.asarray(there)}


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    return np.allclose(a, b, atol=1e-5)


@pytest.mark.requirement("S2.26")
def test_a_flat_vector_and_a_dict_of_its_groups_give_the_same(outputs):
    assert outputs["dict"].shape == outputs["as it is"].shape and alike(outputs["dict"], outputs["as it is"])


@pytest.mark.requirement("S2.26")
def test_tokens_may_change_places_but_not_along_an_axis_that_is_ordered(outputs):
    assert alike(outputs["points turned"], outputs["as it is"]) and alike(outputs["cars turned"], outputs["as it is"])
    assert not alike(outputs["steps turned"], outputs["as it is"])
    assert not alike(outputs["other car"], outputs["as it is"])


@pytest.mark.requirement("S2.26")
def test_numbers_of_tokens_that_are_not_there_change_nothing(outputs):
    assert all(np.isfinite(made).all() for made in outputs.values())
    assert alike(outputs["noise"], outputs["as it is"])
    assert alike(outputs["only points that are there"], outputs["as it is"])
    assert alike(outputs["without"], outputs["without, noise"]) and not alike(outputs["without"], outputs["as it is"])


def test_parts_are_taken_out_of_a_flat_vector_and_put_back():
    parts = observation()
    flat = join_groups(FLAT, parts)
    np.testing.assert_array_equal(flat[:9], parts["points"].ravel())
    batch = np.stack([flat, 2 * flat])[None]
    for name, part in split_groups(FLAT, batch).items():
        np.testing.assert_array_equal(part, np.stack([parts[name], 2 * parts[name]])[None])
    assert {name: leaf.shape for name, leaf in structured(FLAT).spaces} == {
        "cars": (2, 3, 4), "ego": (2,), "points": (3, 3),
    }  # fmt: skip


def test_groups_are_found_in_every_kind_of_observation():
    space = Dict({"cars": Box(-1, 1, (4, 3)), "all": FLAT, "gear": Discrete(5), "speed": Box(0, 9, (2,))})
    found = {source.group.name: source.group.shape for source in sources(space)}
    assert found == {
        "all/cars": (2, 3, 4), "all/ego": (2,), "all/points": (3, 3), "cars": (4, 3), "gear": (1,), "speed": (1,),
    }  # fmt: skip
    reader = TokenMLP((4,))(space, generator(), "bounds").reader
    assert [group.shape for group in reader.groups][-2:] == [(5,), (2,)], "a choice is one token, one-hot"
    obs = {"cars": jnp.ones((7, 4, 3)), "all": jnp.ones((7, 35)), "gear": jnp.full(7, 3), "speed": jnp.ones((7, 2))}
    batch, tokens = reader(obs)
    assert batch == (7,) and [x.features.shape for x in tokens][-2:] == [(7, 1, 5), (7, 1, 2)]
    np.testing.assert_array_equal(tokens[-2].features[0, 0], [0, 0, 0, 1, 0])


def test_without_an_encoder_a_vector_stays_as_it_is():
    encoder = NoEncoder()(FLAT, generator(), "bounds")
    np.testing.assert_array_equal(encoder(jnp.arange(35.0)), np.arange(35.0))


class Float64:
    """Latent-query attention in NumPy, one observation and one head at a time."""

    def __init__(self, module: nnx.Module):
        self.weights = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(module, nnx.Param)))

    def __call__(self, parts: dict[str, np.ndarray], depth: int, heads: int) -> np.ndarray:
        tokens = []
        for i, group in enumerate((CARS, EGO, POINTS)):
            layers = self.weights["embeddings"][i]
            x = np.asarray(parts[group.name], np.float64).reshape(-1, group.shape[-1])
            h = x @ layers["first"]["kernel"] + layers["first"]["bias"]
            if group is CARS:
                h = h + np.concatenate([layers["places"][0]] * 2)
            h = self.norm(layers["norm"], self.linear(layers["second"], np.maximum(h, 0)))
            tokens.append(h if group.valid is None else h[x[:, group.valid] > 0.5])
        seen, attention = np.concatenate(tokens), self.weights["attention"]
        latents = attention["latents"]
        for _ in range(depth):
            latents = self.block(attention["across"][0], latents, seen, heads)
            latents = self.block(attention["among"][0], latents, None, heads)
        return self.norm(self.weights["norm"], latents).mean(axis=0)

    def block(self, layers: dict, h: np.ndarray, tokens: np.ndarray | None, heads: int) -> np.ndarray:
        normed, d = self.norm(layers["norm_attention"], h), h.shape[1]
        weights, bias = layers["project"]["kernel"], layers["project"]["bias"]
        query = normed @ weights[:, :d] + bias[:d]
        source = normed if tokens is None else tokens
        key, value = (source @ weights[:, i * d : i * d + d] + bias[i * d : i * d + d] for i in (1, 2))
        mixed = np.zeros_like(query)
        for head in np.split(np.arange(d), heads):
            scores = np.exp(query[:, head] @ key[:, head].T / np.sqrt(len(head)))
            mixed[:, head] = scores / scores.sum(axis=1, keepdims=True) @ value[:, head]
        h = h + self.linear(layers["combine"], mixed)
        wide = self.linear(layers["widen"], self.norm(layers["norm_feedforward"], h))
        gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
        return h + self.linear(layers["narrow"], gelu)

    @staticmethod
    def linear(layer: dict, x: np.ndarray) -> np.ndarray:
        return x @ layer["kernel"] + layer["bias"]

    @staticmethod
    def norm(layer: dict, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * layer["scale"] + layer["bias"]


@pytest.mark.requirement("S2.26")
def test_latent_queries_are_those_of_float64():
    parts, config = observation(), SMALL["lq"]
    module = config(FLAT, generator(), "bounds")
    got = jax.jit(module)(jnp.asarray(join_groups(FLAT, parts)))
    np.testing.assert_allclose(got, Float64(module)(parts, config.depth, config.num_heads), rtol=2e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_slopes_reach_every_parameter(name):
    graph, parameters = nnx.split(SMALL[name](FLAT, generator(), "bounds"))
    seen = jnp.asarray(np.stack([join_groups(FLAT, observation()) for _ in range(8)]))
    weights = jnp.asarray(RNG.normal(size=SMALL[name](FLAT, generator(), "bounds").outputs), jnp.float32)

    def total(parameters: nnx.State) -> jax.Array:
        return (nnx.merge(graph, parameters)(seen) @ weights).sum()

    slopes = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(jax.jit(jax.grad(total))(parameters)))[0]
    still = [jax.tree_util.keystr(path) for path, slope in slopes if not np.abs(slope).max() > 0]
    # The ego is one token: whatever is asked, there is one answer.
    assert [path for path in still if "['attentions'][1]['across'][0]['norm_attention']" not in path] == []
    assert all(np.isfinite(slope).all() for _, slope in slopes)


def test_rezero_begins_with_what_is_learnt_without_the_observation():
    encoder = jax.jit(LatentQuery(depth=1, num_latents=2, model_dim=8, num_heads=2)(FLAT, generator(), "bounds"))
    a, b = (np.asarray(encoder(jnp.asarray(join_groups(FLAT, observation())))) for _ in range(2))
    assert alike(a, b), "the gates are closed"


def test_tied_rounds_have_the_weights_of_one():
    def count(**options: int | bool) -> int:
        module = LatentQuery(num_latents=2, model_dim=8, num_heads=2, **options)(FLAT, generator(), "bounds")
        return sum(x.size for x in jax.tree.leaves(nnx.state(module, nnx.Param)))

    once, tied, apart = count(depth=1), count(depth=3), count(depth=3, tied=False)
    assert once == tied < apart


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "none"])
@pytest.mark.parametrize("space", [Box(-1, 1, (4,)), Discrete(3), Dict({"one": Box(-1, 1, (4,))})], ids=str)
def test_an_observation_without_groups_is_refused_in_one_line(name, space):
    with pytest.raises(LudusError, match=f"algorithm/network/encoder={name}: the observation .* has no feature groups"):
        ENCODERS[name]()(space, generator(), "bounds")


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (LatentQuery, "depth", 0), (LatentQuery, "num_latents", -1), (LateFusion, "model_dim", 2.5),
        (LateFusion, "num_heads", 5), (TokenMLP, "hidden_sizes", ()), (TokenMLP, "activation", "cube"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(kind, field, value):
    with pytest.raises(LudusError, match=rf"algorithm\.network\.encoder\.{field}="):
        kind(**{field: value})


@pytest.mark.parametrize(
    ("groups", "shape", "told"),
    [
        ([FeatureGroup("a", (2,)), FeatureGroup("a", (2,))], (4,), "name of its own"),
        ([FeatureGroup("a", (2, 3))], (5,), "hold 6 floats"),
        ([{"name": "a", "shape": [5], "valid": 5}], (5,), "valid=5"),
        ([{"name": "a", "shape": [0, 5]}], (0,), "at least 1"),
        ([{"name": "a", "shape": [2, 5], "ordered": [1]}], (10,), "ordered="),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, shape, told):
    with pytest.raises(ValueError, match=told):
        Box(-1.0, 1.0, shape, groups=groups)
