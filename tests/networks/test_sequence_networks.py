"""Networks over whole sequences: shapes, order, padding, windows, devices, and what is no sequence."""

import inspect

import jax
import numpy as np
import pytest
from flax import nnx

import ludus
from ludus.networks.dropout import with_dropout
from ludus.networks.sequence_networks import (
    TransformerPolicyNetwork,
    TransformerRewardModel,
    TransformerValueNetwork,
)

SIZES = {"nhead": 2, "num_layers": 2, "dim_feedforward": 24, "model_dim": 8}
POLICY, VALUE, REWARD = (
    TransformerPolicyNetwork(3, 4, **SIZES), TransformerValueNetwork(3, **SIZES), TransformerRewardModel(3, **SIZES),
)  # fmt: skip
NETWORKS = pytest.mark.parametrize("net", [POLICY, VALUE, REWARD], ids=["policy", "value", "reward"])


def sequences(length=6, count=5, seed=0):
    return np.random.default_rng(seed).normal(size=(length, count, 3)).astype(np.float32)


@pytest.mark.requirement("S0.6", "S0.7", "S0.8")
def test_shapes_and_defaults_are_the_documents():
    x = sequences()
    assert POLICY(x).shape == (5, 4) and VALUE(x).shape == (5, 1) and REWARD(x).shape == (5, 1)
    probabilities, logits = POLICY.probabilities(x), np.asarray(POLICY(x), np.float64)
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), rtol=1e-5)
    assert (logits < 0).any(), "logits, not probabilities"
    for kind, names in (
        (TransformerPolicyNetwork, ["input_dim", "action_dim"]),
        (TransformerValueNetwork, ["input_dim"]),
        (TransformerRewardModel, ["input_dim"]),
    ):
        arguments = inspect.signature(kind.__init__).parameters
        sizes = {"nhead": 8, "num_layers": 6, "dim_feedforward": 2048, "dropout": 0.1}
        assert list(arguments)[1 : len(names) + 5] == [*names, *sizes]
        assert {name: arguments[name].default for name in sizes} == sizes
        assert arguments["model_dim"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.requirement("S0.6", "S0.26")
def test_the_width_of_the_model_is_apart_from_that_of_its_perceptrons():
    shapes = {x.shape for x in jax.tree.leaves(nnx.state(TransformerPolicyNetwork(3, 4, **SIZES), nnx.Param))}
    assert {(8, 24), (24, 8), (8, 4), (3, 8)} <= shapes


@NETWORKS
@pytest.mark.requirement("S0.9")
def test_the_order_of_earlier_states_counts(net):
    x = sequences()
    assert np.abs(net(x) - net(x[[1, 0, 2, 3, 4, 5]])).max() > 1e-6
    assert np.abs(net(x) - net(x[[5, 1, 2, 3, 4, 0]])).max() > 1e-4


@NETWORKS
@pytest.mark.requirement("S0.9")
def test_padding_changes_nothing_wherever_it_is(net):
    x = sequences()
    rng, padded = np.random.default_rng(1), np.full((9, 5, 3), 1e3, np.float32)
    padding = np.stack([rng.permutation(9) < 3 for _ in range(5)], axis=1)  # three rows of each, anywhere
    padding[:, 0], padding[:, 1] = np.arange(9) < 3, np.arange(9) >= 6
    for b in range(5):
        padded[~padding[:, b], b] = x[:, b]
    np.testing.assert_allclose(net(padded, padding), net(x), atol=1e-6)
    assert np.abs(net(padded) - net(x)).max() > 1e-4


@NETWORKS
@pytest.mark.requirement("S0.11")
def test_states_older_than_the_window_are_dropped(net):
    own, x = nnx.clone(net), sequences(12)
    assert own.sequence_length == 10
    np.testing.assert_array_equal(own(x), own(x[-10:]))
    assert np.abs(own(x) - own(x[-9:])).max() > 1e-6
    assert own.seeing(4) is own and own.sequence_length == 4
    np.testing.assert_array_equal(own(x), own(x[-4:]))


@pytest.mark.requirement("S0.13")
def test_answers_are_the_same_each_time_though_there_is_dropout():
    x = sequences()
    np.testing.assert_array_equal(REWARD(x), REWARD(x))
    dropping = with_dropout(nnx.clone(REWARD), jax.random.key(0))
    assert np.abs(dropping(x) - REWARD(x)).max() > 1e-3, "it is there, and off"


@pytest.mark.requirement("S0.2")
def test_networks_move_to_devices_that_are_there():
    net = TransformerValueNetwork(3, **SIZES)
    before = np.asarray(net(sequences()))
    for device in ("cpu", "cpu:0", jax.devices("cpu")[0]):
        assert net.to(device) is net and net.device == jax.devices("cpu")[0]
    np.testing.assert_array_equal(net(sequences()), before)
    if "cuda" not in {device.platform for device in jax.devices()} and jax.default_backend() == "cpu":
        with pytest.raises(ludus.LudusError, match=r"device=cuda: is not there; JAX has cpu"):
            net.to("cuda")
    with pytest.raises(ludus.LudusError, match="device=cpu:99: is not there"):
        net.to("cpu:99")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: POLICY(sequences()[:, 0]), r"sequences: must have the shape \(T, B, 3\).*got \(6, 3\)"),
        (lambda: POLICY(sequences()[..., :2]), r"got \(6, 5, 2\)"),
        (lambda: POLICY(sequences(0)), "at least one state"),
        (lambda: VALUE(sequences(), np.zeros((5, 6), bool)), r"padding: must have the shape \(T, B\) = \(6, 5\)"),
        (lambda: TransformerValueNetwork(3, nhead=3, model_dim=8), "nhead=3: must divide model_dim=8"),
        (lambda: TransformerPolicyNetwork(3, 0), "outputs=0: must be an integer of at least 1"),
        (lambda: TransformerRewardModel(3, dropout=1.0), "dropout=1.0: must be a number of at least 0, and below 1"),
        (lambda: TransformerRewardModel(3, num_layers=1.5), "num_layers=1.5: must be an integer"),
        (lambda: nnx.clone(POLICY).seeing(0), "sequence_length=0: must be an integer"),
    ],
)
def test_what_is_no_sequence_or_size_is_one_line(wrong, words):
    with pytest.raises(ludus.LudusError, match=words):
        wrong()
