"""PyTorch: state dicts for the plain modules of `policy_module.py`, which is copied beside them.

A `.pth` file is a zip archive with two parts: a state dict for PyTorch, and a safetensors file of everything, which
ludus loads. The state dict is read here only to compare it with the policy.
"""

import io
import json
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ludus.algorithms.critic import FORMAT as CRITIC_FORMAT
from ludus.algorithms.critic import Critic
from ludus.algorithms.normalize import (
    RunningStatistics,
    TokenStatistics,
    location_and_scale,
    standard_deviation,
)
from ludus.algorithms.policy import FORMAT, Policy
from ludus.algorithms.policy_file import ENCLOSED, as_bytes, write_file
from ludus.export.interface import Arrays
from ludus.networks.action_scaling import action_scale, action_size
from ludus.networks.actor_critic import MemoryActorCritic, MLPActorCritic
from ludus.networks.encoder import Encoder, NatureCNN
from ludus.networks.encoders import ObservationEncoder
from ludus.networks.layers import ACTIVATIONS, Linear, Part, Torso
from ludus.networks.memory import GRUMemory
from ludus.networks.soft_actor_critic import NUM_CRITICS, SoftActor, SoftCritic, one_critic
from ludus.networks.vectors import byte_scale, vector_size
from ludus.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete, flatten, leaves
from ludus.types import Array, LudusError, Scaling

MODULE = "policy_module.py"
STRIDES = (0, 2, 4)
"""Indices of the convolutions in `nature_cnn`."""
DENSE = 7
"""Index of its dense layer."""

Description = dict[str, Any]
"""The arguments that a module of `policy_module.py` is built from, as JSON has them."""
Tensors = dict[str, Array]
"""Arrays by the names of PyTorch's state dict."""


def write(learned: Policy | Critic, path: Path) -> None:
    """Write a state dict and, beside it, the module and the description that the module is built from."""
    torch = _torch()
    description, tensors = _actor(learned) if isinstance(learned, Policy) else _critic(learned)
    state = OrderedDict((name, torch.from_numpy(np.array(x, np.float32))) for name, x in tensors.items())
    archive = io.BytesIO()
    torch.save(state, archive)
    with zipfile.ZipFile(archive, "a") as parts:
        folder = parts.namelist()[0].partition("/")[0]
        enclosed = zipfile.ZipInfo(f"{folder}/{ENCLOSED}")  # without a time: equal policies are equal files
        parts.writestr(enclosed, as_bytes(learned, FORMAT if isinstance(learned, Policy) else CRITIC_FORMAT))
    write_file(path, archive.getvalue())
    write_file(path.with_suffix(".json"), (json.dumps(description, indent=1) + "\n").encode())
    write_file(path.with_name(MODULE), Path(__file__).with_name(MODULE).read_bytes())


def read_actor(path: Path) -> Callable[[Arrays], Arrays]:
    """Return the policy in a file as a function of named arrays."""
    torch, module = _module(path)
    outputs: list[np.ndarray] = []
    module.actor.register_forward_hook(lambda layers, inputs, output: outputs.append(output.numpy()))

    def act(inputs: Arrays) -> Arrays:
        tensors = {name: torch.from_numpy(np.array(x)) for name, x in inputs.items()}
        with torch.no_grad():
            answer = module(_observation(tensors), tensors.get("memory"), tensors.get("action_mask"))
        action, memory = answer if isinstance(answer, tuple) else (answer, None)
        actions = action if isinstance(action, dict) else {"": action}
        named = {f"action/{name}" if name else "action": x.numpy() for name, x in actions.items()}
        memories = {} if memory is None else {"next_memory": memory.numpy()}
        return named | memories | _logits(module.actions, outputs.pop())

    return act


def read_critic(path: Path) -> Callable[[Arrays], Arrays]:
    """Return the critic in a file as a function of named arrays: observations, memory, and `action` for SAC."""
    torch, module = _module(path)

    def value(inputs: Arrays) -> Arrays:
        tensors = {name: torch.from_numpy(np.array(x)) for name, x in inputs.items()}
        rest = [tensors[name] for name in ("action", "memory") if name in tensors]
        with torch.no_grad():
            answer = module(_observation(tensors), *rest)
        return {"value": (answer[0] if isinstance(answer, tuple) else answer).numpy()}

    return value


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise LudusError("format=torch: needs PyTorch (pip install 'ludus[torch]')") from error
    return torch


def _module(path: Path) -> tuple[Any, Any]:
    """Load a file into a fresh module, as a user would."""
    from ludus.export import policy_module

    torch = _torch()
    description = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    if "actions" in description:
        kind = policy_module.Actor
    else:
        kind = policy_module.TwinCritic if "action_size" in description else policy_module.Critic
    module = kind(**description)
    module.load_state_dict(torch.load(path, weights_only=True))
    return torch, module


def _observation(tensors: dict[str, Any]) -> Any:
    parts = {name[4:]: x for name, x in tensors.items() if name.startswith("obs")}
    return parts.get("", parts)


def _logits(actions: list[Description], outputs: np.ndarray) -> Arrays:
    """Return the last layer's outputs in the policy's layout of logits: a row for each choice, padded with -inf."""
    found, first = {}, 0
    for leaf in actions:
        columns, first = outputs[:, first : first + leaf["size"]], first + leaf["size"]
        name = f"logits/{leaf['name']}" if leaf["name"] else "logits"
        if leaf["kind"] == "bits" or (leaf["kind"] == "choices" and not leaf["shape"]):
            found[name] = columns
        elif leaf["kind"] == "choices":
            sizes = [size for size, _ in leaf["choices"]]
            rows, longest = np.split(columns, np.cumsum(sizes)[:-1], axis=1), max(sizes)
            padded = [np.pad(x, ((0, 0), (0, longest - x.shape[1])), constant_values=-np.inf) for x in rows]
            found[name] = np.stack(padded, axis=1)
    return found


def _actor(policy: Policy) -> tuple[Description, Tensors]:
    state, space = policy.state, policy.spec.action_space
    module = state.network.merge(state.parameters)
    if type(module) is SoftActor:
        shared, shared_tensors = _encoder_and_memory(module, policy)
        torso, head, squash = module.torso, module.mean, True
    else:
        shared, shared_tensors = _encoder_and_memory(_supported(module, (MLPActorCritic, MemoryActorCritic)), policy)
        torso, head, squash = module.actor_torso, module.actor_head.layer, False
    description, tensors = _perceptron("actor", torso, head)
    bounds = [leaf.bounds for _, leaf in leaves(space) if isinstance(leaf, Box)]
    if bounds:
        low, high = zip(*bounds, strict=True)
        tensors |= {"action_low": _flat(low), "action_high": _flat(high)}
    actions = [_action(name, leaf, policy.spec.scaling) for name, leaf in leaves(space)]
    return shared | description | {"actions": actions, "squash": squash}, shared_tensors | tensors


def _critic(critic: Critic) -> tuple[Description, Tensors]:
    state = critic.state
    if critic.algorithm.values_actions:
        return _twin_critic(critic)
    module = _supported(state.network.merge(state.parameters), (MLPActorCritic, MemoryActorCritic))
    shared, shared_tensors = _encoder_and_memory(module, critic)
    description, tensors = _perceptron("critic", module.critic_torso, module.critic_head)
    mean, scale = location_and_scale(state.returns)
    unit = 1.0 if state.rewards is None else standard_deviation(state.rewards)
    return shared | description, shared_tensors | tensors | {"value_mean": mean * unit, "value_scale": scale * unit}


def _twin_critic(critic: Critic) -> tuple[Description, Tensors]:
    state, space = critic.state, critic.spec.action_space
    description, tensors = {}, {}
    for i in range(NUM_CRITICS):
        module = _supported(state.network.merge(one_critic(state.network, state.parameters, i)), (SoftCritic,))
        seen, encoder = _encoder(module.encoder, critic)
        layers, linear = _perceptron(f"critics.{i}", module.torso, module.head)
        description = seen | layers | {"action_size": action_size(space)}
        tensors |= {f"encoders.{i}.{name}": x for name, x in encoder.items()} | linear
    low, high = space.bounds
    return description, tensors | {"action_low": low.ravel(), "action_high": high.ravel()}


def _supported(module: object, kinds: tuple[type, ...]) -> Any:
    """Return a network that `policy_module.py` can compute; a subclass may compute something else, and is refused."""
    if type(module) not in kinds:
        name = type(module).__name__
        raise LudusError(f"format=torch: the network {name} is not mlp or gru; use onnx, stablehlo or safetensors")
    return module


def _encoder_and_memory(
    module: SoftActor | MLPActorCritic | MemoryActorCritic, learned: Policy | Critic
) -> tuple[Description, Tensors]:
    """Return the description and the arrays of the encoder and of the memory."""
    part: Part = "critic" if isinstance(learned, Critic) else "actor"
    own = module.encoder if isinstance(module, SoftActor) else module.encoder_of(part)
    seen, encoder = _encoder(own, learned)
    tensors = {f"encoder.{name}": x for name, x in encoder.items()}
    size = None
    if isinstance(module, MemoryActorCritic):
        unit = _supported(module.memory_of(part).unit, (GRUMemory,))
        for ours, theirs in ((unit.from_input, "ih"), (unit.from_memory, "hh")):
            weight, bias = _linear(ours)
            tensors |= {f"gru.weight_{theirs}": weight, f"gru.bias_{theirs}": bias}
        size = unit.outputs
    return seen | {"inputs": own.outputs, "memory_size": size}, tensors


def _encoder(encoder: ObservationEncoder, learned: Policy | Critic) -> tuple[Description, Tensors]:
    if not isinstance(encoder, Encoder):
        name = type(encoder).__name__
        raise LudusError(
            f"format=torch: the network's encoder {name} is not encoder=none; use onnx, stablehlo or safetensors"
        )
    space, statistics = learned.spec.observation_space, learned.state.observations
    tensors, observations, images = {}, [], 0
    for (name, leaf), part in zip(leaves(space), encoder.parts, strict=True):
        if isinstance(part, NatureCNN):
            observations.append({"name": name, **_image_description(part)})
            tensors |= {f"images.{images}.{key}": x for key, x in _image_tensors(part).items()}
            images += 1
        else:
            observations.append({"name": name, **_observation_description(leaf, part.scaling)})
    if statistics is not None:
        known = [part for part in flatten(space, statistics) if part is not None]
        if known:
            tensors["mean"], tensors["variance"] = map(_flat, zip(*map(_moments, known), strict=True))
        for description, part in zip(observations, flatten(space, statistics), strict=True):
            if isinstance(part, TokenStatistics):
                description["valid"] = _valid_entries(part)
    return {"observations": observations, "normalized": "mean" in tensors}, tensors


def _moments(statistics: RunningStatistics | TokenStatistics) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of each entry of an observation; 0 and 1 for one that stays as it is."""
    if isinstance(statistics, RunningStatistics):
        return np.ravel(statistics.mean), np.ravel(statistics.variance)
    means, variances = [], []
    for (_, tokens, _, valid), group in zip(statistics.rows, statistics.groups, strict=True):
        mean, variance = np.array(group.mean), np.array(group.variance)
        if valid is not None:
            mean[valid], variance[valid] = 0.0, 1.0
        means.append(np.tile(mean, tokens))
        variances.append(np.tile(variance, tokens))
    return np.concatenate(means), np.concatenate(variances)


def _valid_entries(statistics: TokenStatistics) -> list[int]:
    """Return, for each entry, which entry says whether its token is there; the number of entries if none does."""
    size, entries = sum(rows.tokens * rows.features for rows in statistics.rows), []
    for start, tokens, features, valid in statistics.rows:
        for first in range(start, start + tokens * features, features):
            entries += [size if valid in (None, i) else first + valid for i in range(features)]
    return entries


def _observation_description(leaf: Leaf, scaling: Scaling) -> Description:
    if isinstance(leaf, Discrete | MultiDiscrete):
        return {"kind": "choices", "choices": _choices(leaf)}
    if isinstance(leaf, Box) and leaf.dtype == "uint8":
        low, width = (x.ravel().tolist() for x in byte_scale(leaf, scaling))
        return {"kind": "bytes", "size": vector_size(leaf), "low": low, "width": width}
    is_measured = isinstance(leaf, Box) and leaf.is_float
    return {"kind": "numbers" if is_measured else "integers", "size": vector_size(leaf)}


def _action(name: str, leaf: Leaf, scaling: Scaling) -> Description:
    rest = {"name": name, "size": vector_size(leaf), "shape": list(leaf.shape)}
    if isinstance(leaf, Discrete | MultiDiscrete):
        return rest | {"kind": "choices", "choices": _choices(leaf)}
    if isinstance(leaf, MultiBinary):
        return rest | {"kind": "bits"}
    middle, half = (x.ravel().tolist() for x in action_scale(leaf, scaling))
    return rest | {"kind": "numbers", "middle": middle, "half": half}


def _choices(leaf: Discrete | MultiDiscrete) -> list[tuple[int, int]]:
    """Return the number of values and the first value of each choice."""
    sizes = [leaf.n] if isinstance(leaf, Discrete) else leaf.sizes
    return list(zip(sizes, np.broadcast_to(np.ravel(leaf.start), len(sizes)).tolist(), strict=True))


def _image_description(part: NatureCNN) -> Description:
    channels = part.convolutions[0].kernel.shape[2]
    low, width = (x.tolist() for x in byte_scale(part.space, part.scaling))
    return {
        "kind": "image",
        "low": low,
        "width": width,
        "channels": channels,
        "features": part.dense.kernel.shape[0],
        "channels_first": part.channels_first,
    }


def _image_tensors(part: NatureCNN) -> Tensors:
    """Return filters and dense layer; PyTorch orders the inputs of the latter by channel, ludus by height and width."""
    tensors = {}
    for place, convolution in zip(STRIDES, part.convolutions, strict=True):
        tensors[f"{place}.weight"] = np.transpose(convolution.kernel[...], (3, 2, 0, 1))  # HWIO -> OIHW
        tensors[f"{place}.bias"] = convolution.bias[...]
    weight, bias = _linear(part.dense)
    channels = part.convolutions[-1].kernel.shape[3]
    by_side = weight.reshape(len(weight), -1, channels)  # [512, height * width, channels]
    tensors[f"{DENSE}.weight"] = by_side.swapaxes(1, 2).reshape(len(weight), -1)
    return tensors | {f"{DENSE}.bias": bias}


def _perceptron(name: str, torso: Torso, head: Linear) -> tuple[Description, Tensors]:
    layers = [*torso.layers, head]
    sizes = [layers[0].kernel.shape[0], *(layer.kernel.shape[1] for layer in layers)]
    tensors = {}
    for i, layer in enumerate(layers):  # an activation stands between two layers
        tensors[f"{name}.{2 * i}.weight"], tensors[f"{name}.{2 * i}.bias"] = _linear(layer)
    activation = next(name for name, function in ACTIVATIONS.items() if function is torso.activation)
    return {"sizes": sizes, "activation": activation}, tensors


def _linear(layer: Linear) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(layer.kernel[...]).T, np.asarray(layer.bias[...])


def _flat(arrays: Sequence[Array]) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in arrays])
