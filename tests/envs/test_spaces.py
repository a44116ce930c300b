"""Spaces and masks at the environments' side: translation both ways, and one line for whatever is wrong."""

from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from gymnasium import spaces as gym_spaces

import ludus
from ludus.envs.adapters.gymnasium_spaces import as_space
from ludus.envs.batch import JaxEnv
from ludus.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, flatten, unflatten
from ludus.types import Masked

BOX = gym_spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("native", "space"),
    [
        (gym_spaces.Discrete(3, start=4), Discrete(3, start=4)),
        (gym_spaces.MultiDiscrete([2, 3]), MultiDiscrete([2, 3])),
        (gym_spaces.MultiDiscrete([[2, 3]], start=[[1, 2]]), MultiDiscrete([[2, 3]], start=[[1, 2]])),
        (gym_spaces.MultiBinary(3), MultiBinary(3)),
        (gym_spaces.MultiBinary([2, 3]), MultiBinary((2, 3))),
        (gym_spaces.Box(0, 255, (4,), np.uint8), Box(0.0, 255.0, (4,), "uint8")),
        (gym_spaces.Box(-1, 1, (2,), np.float64), Box(-1.0, 1.0, (2,))),
        (gym_spaces.Box(-3, 3, (2,), np.int64), Box(-3.0, 3.0, (2,))),
        (gym_spaces.Dict({"b": BOX, "a": gym_spaces.Discrete(2)}), Dict({"a": Discrete(2), "b": Box(-1.0, 1.0, (2,))})),
        (
            gym_spaces.Tuple([BOX, gym_spaces.Tuple([BOX])]),
            Tuple([Box(-1.0, 1.0, (2,)), Tuple([Box(-1.0, 1.0, (2,))])]),
        ),
    ],
    ids=str,
)
def test_gymnasium_spaces_are_translated(native, space):
    assert as_space(native, "x: observation space") == space


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym_spaces.Text(4), "x: observation space Text is"),
        (gym_spaces.Sequence(BOX), "x: observation space Sequence is"),
        (gym_spaces.Graph(BOX, None), "x: observation space Graph is"),
        (gym_spaces.OneOf([BOX, BOX]), "x: observation space OneOf is"),
        (gym_spaces.Dict({"name": gym_spaces.Text(4)}), "x: observation space 'name': Text is"),
    ],
    ids=str,
)
def test_other_spaces_are_refused_by_name(space, message):
    with pytest.raises(ludus.LudusError) as caught:
        as_space(space, "x: observation space")
    assert message in str(caught.value) and "is not supported; Box, Discrete, MultiDiscrete" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_that_cannot_be_used_gets_the_wrapper_that_leaves_it_out():
    space = gym_spaces.Dict({"mission": gym_spaces.Text(4), "image": BOX, "direction": gym_spaces.Discrete(4)})
    wrapper = r"\{name:gymnasium.wrappers:FilterObservation,filter_keys:\[direction,image\]\}"
    with pytest.raises(ludus.LudusError, match=rf"'mission': Text is not supported; .*'env_wrappers=\[{wrapper}\]'$"):
        as_space(space, "x: observation space")


def test_observations_keep_their_parts_and_each_environment_its_row():
    env = ludus.make_env(zoo.make("nested", "gymnasium"), 3)
    obs = env.reset([5, 6, 7])
    single = [zoo.RandomGym(zoo.CASES["nested"]) for _ in range(3)]
    wanted = [one.reset(seed=seed)[0] for one, seed in zip(single, (5, 6, 7), strict=True)]
    for i, value in enumerate(wanted):
        for got, part in zip(flatten(env.observation_space, obs), flatten(env.observation_space, value), strict=True):
            np.testing.assert_array_equal(got[i], np.asarray(part, got.dtype))
    assert [x.dtype for x in flatten(env.observation_space, obs)] == ["int32", "float32", "int32"]


def test_the_start_of_the_next_episode_never_shows_up_in_the_successor():
    env = ludus.make_env(zoo.make("dict", "gymnasium"), 2)
    env.reset([0, 1])
    action = unflatten(
        env.action_space, [np.zeros((2, 4), np.int32), np.full(2, 2, np.int32), np.zeros((2, 2), np.float32)]
    )
    for t in range(6):
        step = env.step(action)
        same = [
            np.array_equal(a, b) for a, b in zip(jax.tree.leaves(step.obs), jax.tree.leaves(step.next_obs), strict=True)
        ]
        assert all(same) == (t < 5) and step.terminated.all() == (t == 5)


class Told(gymnasium.Env):
    """Keeps the actions it was given."""

    observation_space = BOX

    def __init__(self, action_space):
        self.action_space, self.told = action_space, []

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.told.append(action)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def told(space, action):
    env = ludus.make_env(lambda: Told(space), 2)
    env.reset([0, 1])
    env.step(action)
    return [single.told[0] for single in env.envs]


def test_actions_arrive_in_the_environments_own_types():
    first, second = told(gym_spaces.Discrete(3, start=4), np.array([4, 6], np.int32))
    assert (first, second) == (4, 6) and isinstance(first, int)
    assert told(gym_spaces.MultiDiscrete([2, 3]), np.array([[1, 2], [0, 0]], np.int32))[0].dtype == np.int64
    assert told(gym_spaces.MultiBinary(2), np.array([[1, 0], [0, 0]], np.int32))[0].dtype == np.int8
    box = gym_spaces.Box(np.float64(-0.1), np.float64(0.1), (1,), np.float64)
    low, high = told(box, np.array([[-0.1], [0.1]], np.float32))
    assert low.dtype == np.float64 and box.contains(low) and box.contains(high)
    parts = gym_spaces.Dict({"z": gym_spaces.Discrete(2), "a": gym_spaces.Tuple([gym_spaces.MultiBinary(1)])})
    one, two = told(parts, {"a": (np.array([[1], [0]], np.int32),), "z": np.array([0, 1], np.int32)})
    assert parts.contains(one) and parts.contains(two) and (one["z"], two["z"]) == (0, 1)


class Shows(gymnasium.Env):
    """Shows whatever it was told to."""

    action_space = gym_spaces.Discrete(2)
    observation_space = gym_spaces.Dict({"a": BOX, "b": gym_spaces.Discrete(3)})
    shown: object = None

    def reset(self, *, seed=None, options=None):
        return self.shown, {}


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ({"a": np.zeros(3), "b": 0}, "observation 'a' has the shape (3,), but its observation space says (2,)"),
        ({"a": np.zeros(2), "b": np.zeros(1)}, "observation 'b' has the shape (1,), but its observation space says ()"),
        ({"a": np.zeros(2)}, "a dict with keys ['a', 'b'] was expected, got keys ['a']"),
        (np.zeros(2), "a dict with keys ['a', 'b'] was expected, got ndarray"),
    ],
)
def test_an_observation_unlike_its_space_is_refused_by_the_name_of_its_part(shown, message):
    env = ludus.make_env(type("Shows", (Shows,), {"shown": shown}), 1)
    with pytest.raises(ludus.LudusError) as caught:
        env.reset([0])
    assert message in str(caught.value) and str(caught.value).startswith("object:Shows: ")


# Masks of Gymnasium environments


class Maskable(gymnasium.Env):
    """Ends after two steps; `masks` are given out one after the other, at resets and steps alike."""

    observation_space = BOX
    action_space = gym_spaces.Discrete(3)
    masks: tuple = ()

    def __init__(self):
        self.given = iter(self.masks)

    def _info(self):
        mask = next(self.given, None)
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), self._info()

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 0.0, self.t == 2, False, self._info()


def maskable(*masks, **fields):
    return ludus.make_env(type("Maskable", (Maskable,), {"masks": masks, **fields}), 1)


def test_masks_are_read_from_reset_and_from_every_step_and_after_an_end_from_the_reset():
    masks = [np.eye(3, dtype=np.int8)[i] for i in (0, 1, 2)]
    env = maskable(masks[0], masks[1], np.zeros(3, np.int8), masks[2])  # an episode that is over may allow nothing
    first = env.reset([0])
    assert isinstance(first, Masked) and first.action_mask.dtype == bool
    np.testing.assert_array_equal(first.action_mask, [masks[0]])
    step = env.step(np.array([0]))
    np.testing.assert_array_equal(step.obs.action_mask, [masks[1]])
    np.testing.assert_array_equal(step.next_obs.action_mask, [masks[1]])
    step = env.step(np.array([1]))
    assert step.terminated[0] and not step.next_obs.action_mask.any()
    np.testing.assert_array_equal(step.obs.action_mask, [masks[2]])


def test_multi_discrete_masks_come_in_one_row_or_as_gymnasium_has_them():
    for mask in ([1, 0, 0, 1, 1], (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))):
        env = maskable(
            mask if isinstance(mask, tuple) else np.array(mask), action_space=gym_spaces.MultiDiscrete([2, 3])
        )
        np.testing.assert_array_equal(env.reset([0]).action_mask, [[True, False, False, True, True]])


@pytest.mark.parametrize(
    ("masks", "fields", "message"),
    [
        ([np.ones(4, np.int8)], {}, "info['action_mask'] must hold 3 zeros and ones for Discrete(n=3, start=0), got"),
        ([np.array([0.5, 1, 1])], {}, "got float64 of shape (3,)"),
        ([np.array([2, 1, 0])], {}, "must hold 3 zeros and ones"),
        (["all"], {}, "got <U3 of shape ()"),
        ([np.ones(3, bool)], {}, "must hold 3 zeros and ones for Discrete(n=3, start=0), got none"),
        ([np.zeros(3, bool)], {}, "(seed 0, step 0 of its episode): the action_mask forbids every action"),
        ([np.ones(3, bool), np.zeros(3, bool)], {}, "environment 0 (seed 0, step 1 of its episode): the action_mask"),
        ([np.array([1, 1, 0, 0, 0])], {"action_space": gym_spaces.MultiDiscrete([2, 3])}, "forbids every action"),
        ([np.ones(2, bool)], {"action_space": BOX}, "masks are for Discrete and MultiDiscrete actions, not for Box("),
        ([np.ones(2, bool)], {"action_space": gym_spaces.MultiBinary(2)}, "not for MultiBinary("),
    ],
)  # fmt: skip
def test_a_wrong_mask_is_one_line_at_once(masks, fields, message):
    with pytest.raises(ludus.LudusError) as caught:
        env = maskable(*masks, **fields)
        env.reset([0])
        env.step(np.array([0]))
    assert message in str(caught.value) and str(caught.value).startswith("object:Maskable: ")
    assert "\n" not in str(caught.value)


def test_taxi_has_masks_and_trains_with_them():
    env = ludus.make_env("Taxi-v4", 4)
    obs = env.reset([0, 1, 2, 3])
    assert obs.action_mask.shape == (4, 6) and obs.obs.shape == (4,)
    ppo = ludus.PPO(batch_size=32, minibatch_size=32, network=ludus.MLP(hidden_sizes=(8,)))
    trainer = ludus.Trainer(ppo, env, ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False))
    state = trainer.loop.runner.start(trainer.loop.arrays, env, ppo.policy(trainer.state.learner), jax.random.key(0))
    assert isinstance(state.env.obs, Masked)


# JAX environments


@dataclass(frozen=True)
class Parts(ludus.Environment):
    """Counts; shows its count in two parts and allows one more action with every step."""

    observation_space = Dict({"count": Discrete(9), "pixels": Box(0.0, 255.0, (2,), "uint8")})
    action_space = Discrete(3)
    max_episode_steps = 2

    def reset(self, key):
        return jnp.int32(0), self.show(jnp.int32(0))

    def show(self, state):
        return {"count": state, "pixels": jnp.full(2, state, jnp.uint8)}

    def step(self, state, action, key):
        return state + 1, ludus.Step(self.show(state + 1), 0.0, jnp.asarray(False), jnp.asarray(False))

    def action_mask(self, state):
        return jnp.arange(3) <= state


def test_a_jax_environment_shows_the_mask_of_the_state_it_is_in():
    env = JaxEnv(Parts(), 2, "parts")
    state = env.reset(jax.random.split(jax.random.key(0), 2))
    draw = jax.tree.map(lambda x: x[0], env.draw(jax.random.key(0), jax.random.key(1), 1))
    np.testing.assert_array_equal(state.obs.action_mask, [[True, False, False]] * 2)
    state, step = env.step(state, jnp.zeros(2, jnp.int32), draw)
    np.testing.assert_array_equal(state.obs.action_mask, [[True, True, False]] * 2)
    state, step = env.step(state, jnp.zeros(2, jnp.int32), draw)  # the time limit: a new episode
    np.testing.assert_array_equal(step.obs.action_mask, [[True, True, True]] * 2)
    np.testing.assert_array_equal(step.obs.obs["count"], [2, 2])
    np.testing.assert_array_equal(state.obs.action_mask, [[True, False, False]] * 2)
    np.testing.assert_array_equal(state.obs.obs["count"], [0, 0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"show": lambda self, s: {"count": s}},
            "the observation of reset is unlike its space: a dict with keys ['count', 'pixels']",
        ),
        (
            {"show": lambda self, s: {"count": s, "pixels": jnp.zeros(3, jnp.uint8)}},
            "the observation of reset 'pixels' has shape (3,), but must have (2,)",
        ),
        (
            {"show": lambda self, s: {"count": s, "pixels": jnp.zeros(2)}},
            "'pixels' is float32, but its space says uint8",
        ),
        (
            {"action_mask": lambda self, s: jnp.ones(4, bool)},
            "action_mask must return 3 booleans for Discrete(n=3, start=0), got bool of shape (4,)",
        ),
        ({"action_mask": lambda self, s: jnp.ones(3)}, "got float32 of shape (3,)"),
        ({"action_space": MultiBinary(3)}, "masks are for Discrete and MultiDiscrete actions, not MultiBinary("),
        ({"action_space": "left"}, "action_space must be a space of ludus.spaces"),
    ],
)  # fmt: skip
def test_a_jax_environment_unlike_its_spaces_is_refused_by_name(fields, message):
    with pytest.raises(ludus.LudusError) as caught:
        ludus.make_env(type("Parts", (Parts,), fields)(), 2)
    assert message in str(caught.value) and "\n" not in str(caught.value)
