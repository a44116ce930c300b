"""A trained policy: what it is, how it is saved, how it is loaded. One file holds all of it, normaliser included."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus.learning.algorithm import as_arrays
from ludus.learning.registry import build, describe
from ludus.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    flatten,
    leaves,
    mask_size,
    unflatten,
)
from ludus.types import LudusError, Masked, Spec, split_mask

FORMAT = "ludus-policy-1"
FINAL = Path("policies") / "final_actor.safetensors"


@dataclass(frozen=True)
class Policy:
    """A policy that can act on its own: call it with an observation, or a batch of them."""

    algorithm: Any
    state: Any
    spec: Spec
    env_id: str

    def __call__(self, obs: Any, memory: Any = None) -> Any:
        """Return the greedy action for one observation or a batch; with a memory, `(action, memory)`.

        A `ludus.Masked` observation says which actions are allowed.
        A recurrent policy is called with `memory=policy.initial_memory()` first, then with what it returned.
        """
        batch, single = self._batch(obs)
        start = self.initial_memory(len(jax.tree.leaves(batch)[0])) if memory is None else memory
        new_memory, action = _greedy(self.algorithm, self.state, start, batch)
        action = jax.tree.map(lambda x: np.asarray(x)[0] if single else np.asarray(x), action)
        return action if memory is None else (action, new_memory)

    def initial_memory(self, n: int = 1) -> Any:
        """Memory at the start of `n` episodes; `()` for a policy without one."""
        return self.algorithm.initial_memory(self.state, n)

    def _batch(self, obs: Any) -> tuple[Any, bool]:
        """Return observations as a batch of arrays of the space's types, and whether there was only one."""
        space, (obs, mask) = self.spec.observation_space, split_mask(obs)
        try:
            parts = flatten(space, obs)
        except ValueError as error:
            raise LudusError(f"policy of {self.env_id}: an observation unlike its space: {error}") from error
        arrays = [np.asarray(part, leaf.dtype) for (_, leaf), part in zip(leaves(space), parts, strict=True)]
        single = arrays[0].ndim == len(leaves(space)[0][1].shape)
        batch = unflatten(space, arrays)
        if mask is not None:
            mask = np.asarray(mask, bool)
            if mask.shape[-1:] != (mask_size(self.spec.action_space),):
                action_space = self.spec.action_space
                raise LudusError(f"policy of {self.env_id}: a mask of shape {mask.shape} does not fit {action_space}")
            batch = Masked(batch, mask)
        return (jax.tree.map(lambda x: x[None], batch) if single else batch), single


@jax.jit
def _greedy(algorithm: Any, state: Any, memory: Any, obs: Any) -> tuple[Any, Any]:
    return algorithm.act(state, memory, obs, None, "greedy")[:2]


def save_policy(policy: Policy, path: Path) -> None:
    """Write a policy as one safetensors file: a format that holds numbers and text, and can execute nothing."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    metadata = {
        "format": FORMAT,
        "algorithm": json.dumps(describe(_as_numbers(policy.algorithm))),
        "observation_space": json.dumps(_space_to_data(policy.spec.observation_space)),
        "action_space": json.dumps(_space_to_data(policy.spec.action_space)),
        "num_envs": str(policy.spec.num_envs),
        "env": policy.env_id,
    }
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(_named_arrays(policy.state), partial, metadata)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        raise LudusError(f"{path}: cannot be written ({error})") from error


def load_policy(path: str | Path, algorithm: Any = None) -> Policy:
    """Load the final policy of a run folder, or a policy file.

    Args:
        path: a run folder or a `.safetensors` policy file.
        algorithm: the algorithm it was trained with; needed only if that held your own network.
    """
    path = Path(path)
    file = path / FINAL if path.is_dir() else path
    metadata, arrays = _read(file)
    try:
        spaces = [_space_from_data(json.loads(metadata[name])) for name in ("observation_space", "action_space")]
        spec = Spec(*spaces, num_envs=int(metadata["num_envs"]))
        env_id, description = metadata["env"], json.loads(metadata["algorithm"])
        algorithm = build(description) if algorithm is None else algorithm
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise LudusError(f"{file}: its header is damaged ({type(error).__name__}: {error})") from error
    blank = algorithm.policy(algorithm.init(jax.random.key(0), spec))
    return Policy(as_arrays(algorithm), _filled(blank, arrays, file), spec, env_id)


def _read(file: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise LudusError(f"{file}: no such policy file")
    try:
        with safe_open(file, framework="numpy") as handle:
            metadata = handle.metadata() or {}
            arrays = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise LudusError(f"{file}: not a readable policy file ({error})") from error
    if metadata.get("format") != FORMAT:
        raise LudusError(f"{file}: format {metadata.get('format')!r} is not {FORMAT!r}")
    return metadata, arrays


def _named_arrays(state: Any) -> dict[str, np.ndarray]:
    """Return the leaves by path; parameters have the module's own names."""
    arrays = {f"parameters/{name}": leaf for name, leaf in zip(state.network.names, state.parameters, strict=True)}
    rest, _ = jax.tree_util.tree_flatten_with_path(replace(state, parameters=None))
    arrays |= {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in rest}
    return {name: np.array(leaf, order="C") for name, leaf in arrays.items()}


def _filled(blank: Any, arrays: dict[str, np.ndarray], file: Path) -> Any:
    expected = _named_arrays(blank)
    if expected.keys() != arrays.keys():
        difference = sorted(expected.keys() ^ arrays.keys())
        raise LudusError(f"{file}: holds other arrays than this network has (first: {difference[0]})")
    for name, array in expected.items():
        if array.shape != arrays[name].shape or array.dtype != arrays[name].dtype:
            raise LudusError(
                f"{file}: {name} is {arrays[name].dtype}{list(arrays[name].shape)}, "
                f"but the network has {array.dtype}{list(array.shape)}"
            )
        if not np.isfinite(arrays[name]).all():
            raise LudusError(f"{file}: {name} holds a NaN or an infinity")
    names, treedef = list(expected), jax.tree.structure(replace(blank, parameters=None))
    count = len(blank.network.names)
    parameters = tuple(arrays[name] for name in names[:count])
    state = jax.tree.unflatten(treedef, [arrays[name] for name in names[count:]])
    return jax.device_put(replace(state, parameters=parameters))


def _as_numbers(algorithm: Any) -> Any:
    return jax.tree.map(float, algorithm)


def _space_to_data(space: Space) -> dict[str, Any]:
    if isinstance(space, Dict):
        return {"kind": "Dict", "spaces": [[name, _space_to_data(part)] for name, part in space.spaces]}
    if isinstance(space, Tuple):
        return {"kind": "Tuple", "spaces": [_space_to_data(part) for part in space.spaces]}
    return {"kind": type(space).__name__, **asdict(space)}


def _space_from_data(data: dict[str, Any]) -> Space:
    kind, rest = data["kind"], {key: _as_tuples(value) for key, value in data.items() if key != "kind"}
    if kind == "Dict":
        return Dict(tuple((name, _space_from_data(part)) for name, part in rest["spaces"]))
    if kind == "Tuple":
        return Tuple(tuple(_space_from_data(part) for part in rest["spaces"]))
    kinds = {"Box": Box, "Discrete": Discrete, "MultiBinary": MultiBinary, "MultiDiscrete": MultiDiscrete}
    return kinds[kind](**rest)


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value
