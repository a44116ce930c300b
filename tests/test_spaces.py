"""Spaces: hashable, equal when they mean the same, and their values are pytrees in JAX's own order."""

import json

import jax
import numpy as np
import pytest

from ludus.spaces import (
    Box,
    Dict,
    Discrete,
    FeatureGroup,
    MultiBinary,
    MultiDiscrete,
    Tuple,
    flatten,
    from_data,
    grouped,
    leaves,
    map_leaves,
    mask_size,
    to_data,
    unflatten,
)

NESTED = Dict(
    {
        "zebra": Tuple([Box(-1.0, 1.0, (2,)), Discrete(3, start=4)]),
        "ant": MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, 0]]),
        "Bee": Dict({"eye": Box(0.0, 255.0, (36, 36, 3), "uint8"), "bits": MultiBinary(4)}),
    }
)
NAMES = ["Bee/bits", "Bee/eye", "ant", "zebra/0", "zebra/1"]
SPACES = [
    Discrete(3),
    Discrete(3, start=-2),
    MultiDiscrete((2, 3)),
    MultiBinary((2, 2)),
    Box((-1.0, 0.0), (1.0, np.inf), (2,)),
    NESTED,
    Tuple(()),
    grouped([FeatureGroup("ego", (2,)), FeatureGroup("cars", [3, 5, 4], valid=3, ordered=[1])]),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_a_space_is_hashable_and_survives_json(space):
    assert hash(space) == hash(from_data(to_data(space)))
    assert space == from_data(json.loads(json.dumps(to_data(space))))


def test_a_box_without_groups_is_written_as_ever():
    box = Box(-1.0, 1.0, (2,))
    assert to_data(box) == {"kind": "Box", "low": -1.0, "high": 1.0, "shape": (2,), "dtype": "float32"}
    assert box != Box(-1.0, 1.0, (2,), groups=[FeatureGroup("one", (2,))])


def test_spaces_that_mean_the_same_are_equal():
    assert Dict({"a": Discrete(2), "b": Discrete(3)}) == Dict([("b", Discrete(3)), ("a", Discrete(2))])
    assert MultiDiscrete([2, 3]) == MultiDiscrete(np.array([2, 3]), start=np.zeros(2, int))
    assert MultiBinary(4) == MultiBinary((4,)) == MultiBinary([4])
    assert Box(-0.1, 0.1, (2,), "float64") == Box(-0.1, 0.1, (2,))
    assert Discrete(3) != Discrete(3, start=1)
    assert MultiDiscrete([2, 3]) != MultiDiscrete([[2, 3]])


def test_leaves_come_by_name_in_the_order_in_which_jax_flattens_values():
    assert [name for name, _ in leaves(NESTED)] == NAMES
    value = unflatten(NESTED, NAMES)
    assert value == {
        "ant": "ant", "zebra": ("zebra/0", "zebra/1"), "Bee": {"eye": "Bee/eye", "bits": "Bee/bits"},
    }  # fmt: skip
    assert jax.tree.leaves(value) == flatten(NESTED, value) == NAMES
    assert leaves(Discrete(3)) == [("", Discrete(3))]


def test_a_function_of_every_leaf_keeps_the_shape_of_values():
    shapes = map_leaves(lambda leaf: list(leaf.shape), NESTED)
    assert shapes == {"ant": [2, 2], "zebra": ([2], []), "Bee": {"eye": [36, 36, 3], "bits": [4]}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"ant": 0, "Bee": {"eye": 0, "bits": 0}},
            r"keys \['Bee', 'ant', 'zebra'\] was expected, got keys \['Bee', 'ant'\]",
        ),
        (
            {"ant": 0, "zebra": (1, 2, 3), "Bee": {"eye": 0, "bits": 0}},
            "a tuple of 2 values was expected, got 3 values",
        ),
        ({"ant": 0, "zebra": (1, 2), "Bee": 7}, r"keys \['bits', 'eye'\] was expected, got int"),
    ],
)
def test_a_value_of_another_shape_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        flatten(NESTED, value)


def test_masks_have_an_entry_for_each_value_of_each_component():
    assert mask_size(Discrete(4, start=2)) == 4
    assert mask_size(MultiDiscrete([[2, 3], [4, 5]])) == 14
    assert mask_size(MultiBinary(3)) is None and mask_size(Box(0.0, 1.0, (2,))) is None and mask_size(NESTED) is None
