"""Checks of a user's JAX environment: whether it keeps the contract of `Environment`, before anything is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ludus.envs.base import Environment, Observation, State
from ludus.envs.scenarios.base import ScenarioEnvironment, Split
from ludus.spaces import Space, flatten, leaves, map_leaves, mask_size, unflatten
from ludus.types import LudusError, Step


def check_environment(env: Environment, id: str) -> None:
    """Refuse an environment that does not keep the contract, by asking for the shapes of one reset and one step."""
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), Space):
            raise LudusError(f"{id}: {name} must be a space of ludus.spaces, such as Box or Discrete")
    try:
        hash(env)
    except TypeError as error:
        raise LudusError(f"{id}: must be hashable: a frozen dataclass without arrays or lists ({error})") from error
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = map_leaves(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), env.action_space)
    state, obs = _shapes(env.reset, f"{id}: reset(key) must return (state, obs)", key)
    after, step = _shapes(
        env.step, f"{id}: step(state, action, key) must return (state, ludus.Step)", state, action, key
    )
    if not isinstance(step, Step):
        raise LudusError(f"{id}: step must return (state, ludus.Step), got {type(step).__name__}")
    _check_observation(env, id, "reset", obs)
    _check_observation(env, id, "step", step.obs)
    _check_mask(env, id, state)
    for what, got, wanted in (
        ("the reward", step.reward, ()),
        ("terminated", step.terminated, ()),
        ("truncated", step.truncated, ()),
    ):
        if getattr(got, "shape", None) != wanted:
            raise LudusError(
                f"{id}: {what} has shape {getattr(got, 'shape', type(got).__name__)}, but must have {wanted}"
            )
    if jax.tree.map(lambda x: (x.shape, x.dtype), state) != jax.tree.map(lambda x: (x.shape, x.dtype), after):
        raise LudusError(f"{id}: step must return a state of the same shapes and types as reset")
    if step.terminated.dtype != bool or step.truncated.dtype != bool:
        raise LudusError(f"{id}: terminated and truncated must be booleans")


def check_scenarios(env: Environment, id: str) -> None:
    """Refuse an environment that does not keep the contract of `ScenarioEnvironment`, by asking for shapes."""
    if not isinstance(env, ScenarioEnvironment):
        return
    key = jax.eval_shape(lambda: jax.random.key(0))
    made = {split: _generated(env, id, split, key) for split in ("training", "evaluation")}
    if made["training"][1] != made["evaluation"][1]:
        raise LudusError(f"{id}: generate must return scenarios of the same shapes and types for both splits")
    scenario, outline = made["training"]
    if not isinstance(scenario, dict) or len(outline) == 1:
        raise LudusError(f"{id}: generate must return a dict of arrays, got {type(scenario).__name__}")
    for name, wanted in (("is_usable", bool), ("template", int), ("weight", float)):
        answer = jax.eval_shape(getattr(env, name), scenario)
        if getattr(answer, "shape", None) != () or not np.can_cast(answer.dtype, wanted, "same_kind"):
            raise LudusError(f"{id}: {name} must return one {wanted.__name__} for a scenario")
    if both := sorted(set(env.templates["training"]) & set(env.templates["evaluation"])):
        raise LudusError(f"{id}: its template {both[0]!r} belongs to training and evaluation; it can be in one alone")


def _generated(env: ScenarioEnvironment, id: str, split: Split, key: Any) -> tuple[Any, list[Any]]:
    """Return the shapes of a scenario, and what they are to be compared by."""
    try:
        made = jax.eval_shape(lambda key: env.generate(key, split, env.parameters), key)
    except (TypeError, ValueError) as error:
        raise LudusError(f"{id}: generate(key, split, parameters) must return arrays ({_first(error)})") from error
    leaves_, structure = jax.tree.flatten(made)
    return made, [structure, *((leaf.shape, leaf.dtype) for leaf in leaves_)]


def _first(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _check_observation(env: Environment, id: str, method: str, obs: Observation) -> None:
    """Compare shapes leaf by leaf, and bytes with bytes: only those are scaled by their bounds."""
    space, what = env.observation_space, f"{id}: the observation of {method}"
    try:
        parts = flatten(space, obs)
    except ValueError as error:
        raise LudusError(f"{what} is unlike its space: {error}") from error
    for (name, leaf), part in zip(leaves(space), parts, strict=True):
        where = f"{what} {name!r}" if name else what
        got = getattr(part, "shape", type(part).__name__)
        if got != leaf.shape:
            raise LudusError(f"{where} has shape {got}, but must have {leaf.shape}")
        if (part.dtype == np.uint8) != (leaf.dtype == "uint8"):
            raise LudusError(f"{where} is {part.dtype}, but its space says {leaf.dtype}")
    if jax.tree.structure(obs) != jax.tree.structure(unflatten(space, parts)):
        raise LudusError(f"{what} must be made of plain dicts and tuples, got {type(obs).__name__}")


def _check_mask(env: Environment, id: str, state: State) -> None:
    mask, size = jax.eval_shape(env.action_mask, state), mask_size(env.action_space)
    if mask is None:
        return
    if size is None:
        raise LudusError(
            f"{id}: has an action_mask, but masks are for Discrete and MultiDiscrete actions, not {env.action_space}"
        )
    if getattr(mask, "shape", None) != (size,) or mask.dtype != bool:
        got = f"{mask.dtype} of shape {mask.shape}" if hasattr(mask, "shape") else type(mask).__name__
        raise LudusError(f"{id}: action_mask must return {size} booleans for {env.action_space}, got {got}")


def _shapes(function: Callable[..., tuple[Any, Any]], contract: str, *arguments: Any) -> tuple[Any, Any]:
    try:
        first, second = jax.eval_shape(function, *arguments)
    except (TypeError, ValueError) as error:
        raise LudusError(f"{contract} ({str(error).splitlines()[0]})") from error
    return first, second
