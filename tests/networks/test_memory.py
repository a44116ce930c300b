"""Memory units: a step at a time they compute what they compute over a whole span, and no episode knows of another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.networks.attention import rotated
from ludus.networks.memory import GRUMemory, TransformerMemory
from ludus.networks.network import network_for
from ludus.networks.recurrence import memory_of, span
from ludus.networks.window import WindowMemory
from ludus.spaces import Box, Discrete
from ludus.types import Spec

INPUTS, STEPS, ENVS = 5, 17, 4


def transformer(window=6, layers=3, dim=16, heads=2):
    return TransformerMemory(
        INPUTS, model_dim=dim, num_layers=layers, num_heads=heads, feedforward_dim=32, window=window,
        generator=np.random.default_rng(0),
    )  # fmt: skip


UNITS = {
    "gru": GRUMemory(INPUTS, 8, np.random.default_rng(0)),
    "transformer": transformer(),
    "a window of one step": transformer(window=1),
    "a window longer than the span": transformer(window=40),
    "odd heads": transformer(dim=15, heads=5),
    "a strict window": WindowMemory(transformer()),
    "a strict window of one step": WindowMemory(transformer(window=1)),
}


def draw(seed=0, ends=0.2):
    rng = np.random.default_rng(seed)
    x, after = rng.normal(size=(2, STEPS, ENVS, INPUTS)).astype(np.float32)
    return x, after, rng.random((STEPS, ENVS)) < ends


def warm(unit, steps=4):
    """A memory in the midst of an episode, longer in some environments than in others."""
    memory, rng = unit.initial(ENVS), np.random.default_rng(9)
    for t in range(steps):
        memory, _ = unit.step(memory, rng.normal(size=(ENVS, INPUTS)).astype(np.float32))
        memory = cleared(unit, memory, np.arange(ENVS) == t)
    return memory


def cleared(unit, memory, ended):
    def choose(a, b):
        return jnp.where(ended.reshape(-1, *[1] * (b.ndim - 1)), a, b)

    return jax.tree.map(choose, unit.initial(ENVS), memory)


@pytest.mark.slow
@pytest.mark.requirement("S0.11")
@pytest.mark.parametrize("name", UNITS)
def test_step_by_step_it_computes_what_it_computes_over_a_span(name):
    unit, (x, after, ended) = UNITS[name], draw()
    start = memory = warm(unit)
    seen = unit.span(memory, x, after, ended, 5)
    memories = []
    for t in range(STEPS):
        memories += [memory] if t % 5 == 0 else []
        left, features = unit.step(memory, x[t])
        np.testing.assert_allclose(seen.features[t], features, atol=1e-5)
        np.testing.assert_allclose(seen.next_features[t], unit.step(left, after[t])[1], atol=1e-5)
        memory = cleared(unit, left, ended[t])
    for number, expected in enumerate([*memories, memory]):
        found = jax.tree.map(lambda rows, number=number: rows[number], seen.memories)
        for probe in x[:3]:  # a cleared cache may hold anything, as long as nothing comes of it
            np.testing.assert_allclose(unit.step(found, probe)[1], unit.step(expected, probe)[1], atol=1e-5)
    second = unit.span(jax.tree.map(lambda rows: rows[2], seen.memories), x[10:], None, ended[10:], 7)
    np.testing.assert_allclose(second.features, seen.features[10:], atol=1e-5)
    assert jax.tree.structure(start) == jax.tree.structure(memory)


@pytest.mark.requirement("S0.9")
@pytest.mark.parametrize("name", ["gru", "transformer", "a window longer than the span"])
def test_the_order_of_earlier_steps_matters(name):
    unit, (x, _, _) = UNITS[name], draw()
    never = np.zeros((4, ENVS), bool)
    one, other = (
        unit.span(unit.initial(ENVS), x[order], None, never, 4).features[-1] for order in ([0, 1, 2, 3], [2, 0, 1, 3])
    )
    assert np.abs(one - other).max() > 1e-3


@pytest.mark.slow
@pytest.mark.requirement("S0.9")
@pytest.mark.parametrize("name", UNITS)
def test_padding_before_the_first_step_changes_nothing(name):
    unit, (x, _, _) = UNITS[name], draw()
    padded = np.concatenate([np.full((3, ENVS, INPUTS), 1e3, np.float32), x])
    ended = np.zeros((STEPS + 3, ENVS), bool)
    ended[2] = True
    without = unit.span(unit.initial(ENVS), x, None, np.zeros((STEPS, ENVS), bool), STEPS).features
    np.testing.assert_allclose(unit.span(unit.initial(ENVS), padded, None, ended, 5).features[3:], without, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNITS)
def test_nothing_leaks_over_an_episodes_end_nor_from_the_future(name):
    unit, (x, after, ended) = UNITS[name], draw(ends=0.0)
    ended[6] = True

    def features(x, after, start):
        seen = unit.span(start, x, after, ended, STEPS)
        weights = np.arange(1.0, unit.outputs + 1.0)  # plain sums of what was normalised last do not change at all
        return seen.features @ weights, seen.next_features @ weights

    for at, first, last in ((5, 0, 5), (8, 7, 8)):
        slopes = jax.grad(lambda *inputs, at=at: features(*inputs)[0][at].sum(), argnums=(0, 1))(x, after, warm(unit))
        moved = np.flatnonzero(np.abs(slopes[0]).sum((1, 2)) > 0)
        assert moved.min() >= first and moved.max() == last and not slopes[1].any()
        slopes = jax.grad(lambda *inputs, at=at: features(*inputs)[1][at].sum(), argnums=(0, 1))(x, after, warm(unit))
        assert set(np.flatnonzero(np.abs(slopes[0]).sum((1, 2)))) <= set(range(first, last + 1))
        assert np.flatnonzero(np.abs(slopes[1]).sum((1, 2))).tolist() == [at]


def test_a_layer_sees_no_more_than_its_window():
    unit, (x, _, ended) = transformer(window=3, layers=2), draw(ends=0.0)
    slope = jax.grad(lambda x: unit.span(unit.initial(ENVS), x, None, ended, STEPS).features[10].sum())(x)
    assert np.flatnonzero(np.abs(slope).sum((1, 2))).tolist() == [6, 7, 8, 9, 10], (
        "two layers reach back 2 (3 - 1) steps"
    )


def test_rotations_let_only_distances_count():
    rng = np.random.default_rng(3)
    query, key = rng.normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
    products = [
        float((rotated(query, np.array([a])) * rotated(key, np.array([b]))).sum())
        for a, b in ((5, 2), (105, 102), (3, 0))
    ]
    assert products == pytest.approx([products[0]] * 3, rel=1e-4)
    assert float((rotated(query, np.array([5])) * rotated(key, np.array([4]))).sum()) != pytest.approx(
        products[0], rel=1e-2
    )


def test_a_block_begins_as_nearly_nothing_and_layers_are_normalised():
    unit, (x, _, _) = transformer(layers=6), draw()
    features = unit.span(unit.initial(ENVS), x, None, np.zeros((STEPS, ENVS), bool), STEPS).features
    np.testing.assert_allclose(features.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(features.std(-1), 1.0, atol=1e-3)


def test_with_a_horizon_memories_last_from_one_step_to_so_many():
    unit = GRUMemory(INPUTS, 400, np.random.default_rng(0), horizon=50)
    reset, keep, candidate = np.split(np.asarray(unit.from_input.bias[...]), 3)
    assert not reset.any() and not candidate.any() and not np.asarray(unit.from_memory.bias[...]).any()
    lives = 1 / (1 - 1 / (1 + np.exp(-keep)))  # an entry that keeps a share k of itself lasts 1 / (1 - k) steps
    assert 2 <= lives.min() < 4 and 46 < lives.max() <= 50 and abs(lives.mean() - 26) < 2
    plain = GRUMemory(INPUTS, 400, np.random.default_rng(0))
    np.testing.assert_array_equal(plain.from_memory.kernel[...], unit.from_memory.kernel[...])
    x, never = np.zeros((49, 1, INPUTS), np.float32), np.zeros((49, 1), bool)
    slopes = [
        float(jnp.abs(jax.grad(lambda memory, gru=gru: gru.span(memory, x, None, never, 49).features[-1].sum())(
            np.full((1, 400), 0.5, np.float32)
        )).max())
        for gru in (unit, plain)
    ]  # fmt: skip
    assert slopes[0] > 0.1 and slopes[1] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("build", [ludus.GRU, ludus.Transformer])
def test_actor_and_critic_remember_by_themselves_unless_told_to_share(build, shared):
    spec = Spec(Box(-1.0, 1.0, (3,)), Discrete(2), 2)
    network = network_for(build(shared=shared), spec)
    assert network.has_memory and network.shares_memory == shared
    obs, ended = np.ones((4, 2, 3), np.float32), np.zeros((4, 2), bool)

    def value(parameters):
        module = network.merge(parameters)
        memory = memory_of(module, "critic").initial_memory(2)
        return module.critic(span(module, "critic", memory, obs, None, ended, 4).features).sum()

    slopes = jax.grad(value)(network.initialize(jax.random.key(0)))
    touched = {name.partition("/")[0] for name, slope in zip(network.names, slopes, strict=True) if slope.any()}
    assert ("actor_memory" not in touched) and (touched <= {"critic_memory", "critic_torso", "critic_head"}) != shared


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, r"algorithm.network.num_heads=3: must divide algorithm.network.model_dim=64"),
        ({"context_length": 0}, "algorithm.network.context_length=0: must be an integer of at least 1"),
        ({"num_layers": 1.5}, "algorithm.network.num_layers=1.5: must be an integer of at least 1"),
        ({"hidden_sizes": (0,)}, r"algorithm.network.hidden_sizes=\[0\]: every size must be a positive integer"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(options, message):
    with pytest.raises(ludus.LudusError, match=message):
        ludus.Transformer(**options)
    with pytest.raises(ludus.LudusError, match=r"algorithm.network.horizon=1: must be an integer of at least 2"):
        ludus.GRU(horizon=1)


@pytest.mark.requirement("S0.11")
def test_nothing_older_than_a_strict_window_counts_by_any_way():
    """Of three layers of a sliding one it does: each hands on what it saw."""
    (x, _, _), never = draw(), np.zeros((STEPS, ENVS), bool)
    other = np.concatenate([x[:8] + 1.0, x[8:]])
    for unit, is_strict in ((transformer(), False), (WindowMemory(transformer()), True)):
        one, two = (unit.span(unit.initial(ENVS), rows, None, never, STEPS).features for rows in (x, other))
        gap = np.abs(one - two).max(axis=(1, 2))
        assert (gap[:13] > 1e-4).all(), "steps 8 to 12 see one of the first 8 in a window of 6"
        assert (gap[13:] == 0).all() if is_strict else (gap[13:18] > 1e-6).all()


@pytest.mark.slow
def test_in_the_first_window_of_an_episode_strict_and_sliding_are_the_same():
    (x, after, _), never = draw(), np.zeros((5, ENVS), bool)
    one, two = (
        u.span(u.initial(ENVS), x[:5], after[:5], never, 5) for u in (transformer(), WindowMemory(transformer()))
    )
    np.testing.assert_allclose(one.features, two.features, atol=1e-5)
    np.testing.assert_allclose(one.next_features, two.next_features, atol=1e-5)


def cost_of_acting(unit) -> dict[str, float]:
    """What one step of 16 environments computes, moves and keeps, as the compiler counts it."""
    memory = unit.initial(16)
    counted = jax.jit(unit.step).lower(memory, np.zeros((16, INPUTS), np.float32)).compile().cost_analysis()
    counted = counted[0] if isinstance(counted, list) else counted
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(memory))
    return {"operations": counted["flops"], "bytes moved": counted["bytes accessed"], "bytes kept": kept}


def growth(make) -> dict[str, float]:
    """How much more a window costs from 128 to 512 than from 32 to 128 steps: 4 where costs grow in proportion."""
    small, middle, large = (cost_of_acting(make(window)) for window in (32, 128, 512))
    return {name: (large[name] - middle[name]) / (middle[name] - small[name]) for name in small}


@pytest.mark.slow
@pytest.mark.requirement("S0.25", "S0.27")
def test_acting_costs_no_more_than_in_proportion_to_the_window():
    assert max(growth(transformer).values()) < 4.1
    assert growth(lambda window: WindowMemory(transformer(window)))["operations"] > 4.5  # which shows it all anew
