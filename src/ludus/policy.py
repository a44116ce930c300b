"""A trained policy: what it is, how it is saved, how it is loaded. One file holds all of it, normaliser included."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ludus.learning.algorithm import as_arrays
from ludus.learning.registry import build, describe
from ludus.spaces import Box, Discrete, Space
from ludus.types import LudusError, Spec

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

        A recurrent policy is called with `memory=policy.initial_memory()` first, then with what it returned.
        """
        obs = np.asarray(obs, self.spec.observation_space.dtype)
        single = obs.ndim == len(self.spec.observation_space.shape)
        batch = obs[None] if single else obs
        start = self.initial_memory(len(batch)) if memory is None else memory
        new_memory, action = _greedy(self.algorithm, self.state, start, batch)
        action = np.asarray(action)[0] if single else np.asarray(action)
        return action if memory is None else (action, new_memory)

    def initial_memory(self, n: int = 1) -> Any:
        """Memory at the start of `n` episodes; `()` for a policy without one."""
        return self.algorithm.initial_memory(self.state, n)


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
    """Return the leaves by path; the parameter vector is taken apart into the module's own names."""
    tree = state.network.unravel(state.parameters)
    names = dict(zip(state.network.names, jax.tree.leaves(tree), strict=True))
    arrays = {f"parameters/{name}": leaf for name, leaf in names.items()}
    if state.observations is not None:
        arrays |= {f"observations/{name}": leaf for name, leaf in state.observations._asdict().items()}
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
    vector = np.concatenate([arrays[f"parameters/{name}"].ravel() for name in blank.network.names])
    observations = blank.observations
    if observations is not None:
        observations = type(observations)(*(arrays[f"observations/{name}"] for name in observations._fields))
    return type(blank)(jax.device_put(vector), jax.device_put(observations), blank.network)


def _as_numbers(algorithm: Any) -> Any:
    return jax.tree.map(float, algorithm)


def _space_to_data(space: Space) -> dict[str, Any]:
    return {"kind": type(space).__name__, **asdict(space)}


def _space_from_data(data: dict[str, Any]) -> Space:
    data = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    kind = {"Discrete": Discrete, "Box": Box}[data.pop("kind")]
    return kind(**data)
