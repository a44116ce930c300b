"""Random environments of every kind of space, of Gymnasium and of JAX. They notice a wrong action at once."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

import ludus
from ludus.envs.adapters.gymnasium_spaces import as_space
from ludus.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, flatten, leaves, mask_size, unflatten


@dataclass(frozen=True)
class Case:
    """An observation space, an action space, and whether masks go with them."""

    observations: gym_spaces.Space
    actions: gym_spaces.Space
    masks: bool = False


POSITION = gym_spaces.Box(-2.0, 3.0, (3,))
HEIGHTS = gym_spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
KIND = gym_spaces.Discrete(3, start=2)
BITS = gym_spaces.MultiBinary(4)
TILES = gym_spaces.MultiDiscrete([[2, 3], [4, 2]])
PIXELS = gym_spaces.Box(0, 255, (4, 4, 1), np.uint8)

CASES = {
    "discrete": Case(gym_spaces.Discrete(4), gym_spaces.Discrete(3)),
    "discrete with a start": Case(KIND, gym_spaces.Discrete(3, start=-5)),
    "box of float64, multi-discrete actions": Case(HEIGHTS, gym_spaces.MultiDiscrete([3, 2, 4], start=[1, 0, -2])),
    "multi-discrete of two axes, binary actions": Case(TILES, gym_spaces.MultiBinary((2, 2))),
    "binary, asymmetric box of float64": Case(
        BITS, gym_spaces.Box(np.array([[-0.3, 10], [0, -7]]), np.array([[2.0, 30], [0.1, -6]]), dtype=np.float64)
    ),
    "bytes, unbounded box": Case(PIXELS, gym_spaces.Box(-np.inf, np.inf, (2,))),
    "asymmetric box, half-bounded box": Case(
        POSITION, gym_spaces.Box(np.float32([0, -np.inf]), np.float32([np.inf, 5]))
    ),
    "dict": Case(
        gym_spaces.Dict({"position": POSITION, "kind": KIND, "bits": BITS, "pixels": PIXELS}),
        gym_spaces.Dict({"move": gym_spaces.Box(-1, 3, (2,)), "jump": KIND, "grip": BITS}),
    ),
    "nested": Case(
        gym_spaces.Dict({"self": gym_spaces.Tuple([HEIGHTS, KIND]), "map": gym_spaces.Dict({"tiles": TILES})}),
        gym_spaces.Tuple([TILES, gym_spaces.Dict({"turn": gym_spaces.Box(-1, 1, (1,), np.float64)})]),
    ),
    "image": Case(
        gym_spaces.Dict({"camera": gym_spaces.Box(0, 255, (36, 40, 3), np.uint8), "speed": POSITION}),
        gym_spaces.Discrete(2),
    ),
    "masked choice": Case(POSITION, gym_spaces.Discrete(5, start=3), masks=True),
    "masked multi-discrete": Case(gym_spaces.Dict({"kind": KIND}), TILES, masks=True),
}


class RandomGym(gymnasium.Env):
    """Shows random observations for six steps and insists on actions of its space that its mask allows."""

    def __init__(self, case: Case):
        self.case, self.observation_space, self.action_space = case, case.observations, case.actions
        self.allowed: Any = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), self._info()

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        if self.allowed is not None:
            sizes = np.ravel(getattr(self.action_space, "nvec", [getattr(self.action_space, "n", 0)]))
            chosen = np.ravel(action - self.action_space.start)
            assert self.allowed[np.cumsum([0, *sizes[:-1]]) + chosen].all(), f"{action} is forbidden"
        self.t += 1
        return self.observation_space.sample(), float(self.t), self.t == 6, False, self._info()

    def _info(self) -> dict:
        if not self.case.masks:
            return {}
        size = mask_size(as_space(self.action_space, "action space"))
        self.allowed = self.np_random.random(size) < 0.3
        self.allowed[self._one_of_each()] = True
        return {"action_mask": self.allowed.astype(np.int8)}

    def _one_of_each(self) -> np.ndarray:
        sizes = np.ravel(getattr(self.action_space, "nvec", [getattr(self.action_space, "n", 0)]))
        return np.cumsum([0, *sizes[:-1]]) + self.np_random.integers(sizes)


@dataclass(frozen=True)
class RandomJax(ludus.Environment):
    """The same as JAX functions: what is not in the space, or forbidden, is paid with NaN, which stops the training."""

    observation_space: Space
    action_space: Space
    masks: bool = False
    max_episode_steps = 6

    def reset(self, key):
        return key, self._obs(key)

    def step(self, state, action, key):
        key = jax.random.fold_in(state, 1)
        reward = jnp.where(self._is_fine(state, action), 1.0, jnp.nan)
        return key, ludus.Step(self._obs(key), reward, jnp.asarray(False), jnp.asarray(False))

    def action_mask(self, state):
        if not self.masks:
            return None
        key = jax.random.fold_in(state, 2)
        allowed = [
            jax.random.bernoulli(key, 0.3, (n,)).at[jax.random.randint(key, (), 0, n)].set(True) for n in self.sizes
        ]
        return jnp.concatenate(allowed)

    @property
    def sizes(self) -> list[int]:
        return self.action_space.sizes if isinstance(self.action_space, MultiDiscrete) else [self.action_space.n]

    def _obs(self, key):
        return unflatten(self.observation_space, [_random(leaf, key) for _, leaf in leaves(self.observation_space)])

    def _is_fine(self, state, action):
        parts = flatten(self.action_space, action)
        fine = jnp.stack(
            [_contains(leaf, part) for (_, leaf), part in zip(leaves(self.action_space), parts, strict=True)]
        )
        if self.masks:
            index = jnp.ravel(action - jnp.asarray(self.action_space.start)) + np.cumsum([0, *self.sizes[:-1]])
            fine = jnp.append(fine, self.action_mask(state)[index].all())
        return fine.all()


def _random(space: Any, key: jax.Array) -> jax.Array:
    if isinstance(space, Discrete):
        return jax.random.randint(key, (), space.start, space.start + space.n)
    if isinstance(space, MultiDiscrete):
        return jax.random.randint(key, space.shape, 0, np.asarray(space.nvec)) + np.asarray(space.start)
    if isinstance(space, MultiBinary):
        return jax.random.bernoulli(key, 0.5, space.shape).astype(jnp.int32)
    if space.dtype == "uint8":
        return jax.random.bits(key, space.shape, jnp.uint8)
    return jax.random.normal(key, space.shape)


def _contains(space: Any, value: jax.Array) -> jax.Array:
    assert value.shape == space.shape and value.dtype == space.dtype
    if isinstance(space, Box):
        low, high = space.bounds
    elif isinstance(space, MultiBinary):
        low, high = 0, 1
    else:
        low = np.asarray(space.start)
        high = low + np.asarray(space.n if isinstance(space, Discrete) else space.nvec) - 1
    return ((low <= value) & (value <= high)).all()


def make(name: str, how: str) -> Any:
    """Return an environment to give to `make_env`."""
    case = CASES[name]
    if how == "gymnasium":
        return lambda: RandomGym(case)
    return RandomJax(as_space(case.observations, ""), as_space(case.actions, "action space"), case.masks)
