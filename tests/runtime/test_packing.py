"""Rows chosen by a mask, and trees laid out in one matrix and back without losing a bit."""

import jax
import jax.numpy as jnp
import numpy as np

from ludus.runtime.packing import PackedLayout, choose_rows

# As float32 these are: zero, the smallest denormal, a NaN with a payload, a signalling NaN, minus zero, minus one.
AWKWARD_BITS = np.array([0, 1, 0x7FC00001, 0x7F800001, 0x80000000, 0xFFFFFFFF], np.uint32)


def tree() -> dict:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(6, 3, 2)).astype(np.float32),
        "action": AWKWARD_BITS.view(np.int32),
        "key": np.stack([AWKWARD_BITS, AWKWARD_BITS[::-1]], axis=1),
        "ended": rng.random(6) < 0.5,
        "pixels": rng.integers(256, size=(6, 4)).astype(np.uint8),
        "nothing": (),
        "reward": rng.normal(size=6).astype(np.float32),
    }


def same_bits(a, b) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


def test_rows_are_chosen_one_by_one_for_any_number_of_axes():
    mask = np.array([True, False, True])
    new, old = {"a": np.ones((3, 2, 2)), "b": np.ones(3)}, {"a": np.zeros((3, 2, 2)), "b": np.zeros(3)}
    chosen = choose_rows(mask, new, old)
    np.testing.assert_array_equal(chosen["a"], np.broadcast_to(mask[:, None, None], (3, 2, 2)))
    np.testing.assert_array_equal(chosen["b"], mask)


def test_a_mask_may_have_two_axes():
    mask = np.random.default_rng(0).random((4, 3)) < 0.5
    chosen = choose_rows(mask, np.ones((4, 3, 2)), np.zeros((4, 3, 2)))
    np.testing.assert_array_equal(chosen, np.repeat(mask[..., None], 2, axis=-1))


def test_what_is_not_chosen_does_not_leak_even_if_it_is_nan():
    chosen = choose_rows(np.array([True, False]), np.array([1.0, np.nan]), np.array([np.nan, 2.0]))
    np.testing.assert_array_equal(chosen, [1.0, 2.0])


def test_packing_and_unpacking_gives_the_same_bits():
    layout = PackedLayout(tree())
    jax.tree.map(same_bits, layout.unpack(layout.pack(tree())), tree())


def test_bits_survive_a_compiled_selection_of_rows():
    layout, index = PackedLayout(tree()), np.array([5, 0, 3, 3, 2, 1, 4])
    pick = jax.jit(lambda tree: layout.unpack([leaf[index] for leaf in layout.pack(tree)]))
    jax.tree.map(same_bits, pick(tree()), jax.tree.map(lambda leaf: leaf[index], tree()))


def test_a_fetched_matrix_unpacks_as_numpy():
    numbers = {name: leaf for name, leaf in tree().items() if name not in ("ended", "pixels")}
    layout = PackedLayout(numbers)
    (matrix,) = layout.pack(numbers)
    assert matrix.shape == (6, layout.width) == (6, 6 + 1 + 2 + 1)
    unpacked = layout.unpack([np.asarray(matrix)[2:5]])
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(unpacked))
    jax.tree.map(same_bits, unpacked, jax.tree.map(lambda leaf: leaf[2:5], numbers))


def test_a_layout_can_be_read_off_shapes_alone():
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree()))
    jax.tree.map(same_bits, PackedLayout(shapes).unpack(PackedLayout(tree()).pack(tree())), tree())
