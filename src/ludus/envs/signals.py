"""Signals: what an environment's numbers mean, by name and in physical units.

Observations are scaled to please networks; people want metres and radians. A declaration is a pure function of
observations and actions, arrays with time first. Here are those of the environments that everybody knows, under
whichever library they are played; `register_signals` adds more, and all others are shown by index.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ludus.types import LudusError

FRAMES_PER_SECOND = 50
"""Steps per second of Box2D's environments."""
WALKER_TORQUE = 80.0
PIXELS_PER_METRE = 30.0
HALF_WIDTH, HALF_HEIGHT = 600 / PIXELS_PER_METRE / 2, 400 / PIXELS_PER_METRE / 2
"""Half of what the lander's window shows, in metres: what its observations are scaled by."""


class Signal(NamedTuple):
    """A series of numbers `[T]` and the unit that they are in; a number without one has ""."""

    values: np.ndarray
    unit: str


Declared = Mapping[str, tuple[Any, str]]
Declaration = Callable[[np.ndarray, np.ndarray, Mapping[str, Any]], Declared]
"""From observations `[T, ...]`, actions `[T, ...]` and the environment's options to values and units by name."""


@dataclass(frozen=True)
class Meaning:
    """The signals of an environment, the most telling first, and the names of its actions.

    `actions` names the values of a Discrete action, or the components of any other.
    """

    signals: Declaration
    actions: tuple[str, ...] = ()


def register_signals(
    env: str, signals: Mapping[str, str] | Callable[[np.ndarray, np.ndarray], Declared], actions: tuple[str, ...] = ()
) -> None:
    """Declare the signals of an environment, in this process.

    Args:
        env: its id without a library's prefix, the name it is registered under, or the name of its class.
        signals: units by name, for the components of the observation in their order; or a function of observations
            `[T, ...]` and actions `[T, ...]` that returns `{name: (values, unit)}`.
        actions: what the values of a Discrete action, or the components of any other, are called.
    """
    if isinstance(signals, Mapping):
        _meanings[_bare(env)] = Meaning(_components(dict(signals)), tuple(actions))
    elif callable(signals):
        function = signals
        _meanings[_bare(env)] = Meaning(lambda obs, action, options: function(obs, action), tuple(actions))
    else:
        raise LudusError(f"register_signals: signals={signals!r} must be units by name, or a function")


def signals_of(
    env: str,
    obs: np.ndarray | Mapping[str, np.ndarray],
    action: np.ndarray | Mapping[str, np.ndarray],
    options: Mapping[str, Any] | None = None,
) -> dict[str, Signal]:
    """Return the named signals of a series of observations `[T, ...]` and actions `[T, ...]`.

    Observations and actions of several parts are mappings by the names of their leaves. An environment of which nothing
    was declared has the components of its vectors, by index; images have none.
    """
    meaning = _meanings.get(_bare(env))
    if meaning is None or isinstance(obs, Mapping) or isinstance(action, Mapping):
        return _by_index("obs", obs) | _by_index("action", action)
    steps = len(obs)
    made = {}
    for name, (values, unit) in meaning.signals(obs, action, options or {}).items():
        series = np.asarray(values)
        if series.shape != (steps,):
            raise LudusError(f"signals of {env}: {name!r} has shape {series.shape}, but must have ({steps},)")
        made[name] = Signal(series, unit)
    return made


def action_names(env: str) -> tuple[str, ...]:
    """Return what the values of a Discrete action, or the components of any other, are called; () if not declared."""
    meaning = _meanings.get(_bare(env))
    return meaning.actions if meaning else ()


def _bare(env: str) -> str:
    return env.rpartition(":")[2]


def _by_index(name: str, arrays: np.ndarray | Mapping[str, np.ndarray]) -> dict[str, Signal]:
    parts = arrays if isinstance(arrays, Mapping) else {"": arrays}
    made = {}
    for part, array in parts.items():
        label = f"{name} {part}".strip()
        if array.ndim == 1:
            made[label] = Signal(array, "")
        elif array.ndim == 2:
            made |= {f"{label} {i}": Signal(array[:, i], "") for i in range(array.shape[1])}
    return made


def _components(units: Mapping[str, str]) -> Declaration:
    """Declare the components of the observation, in their order."""
    return lambda obs, action, options: _named(units, obs)


def _named(units: Mapping[str, str], obs: np.ndarray) -> Declared:
    if obs.ndim != 2 or obs.shape[1] < len(units):
        raise LudusError(f"register_signals: {len(units)} names for observations of shape {obs.shape[1:]}")
    return {name: (obs[:, i], unit) for i, (name, unit) in enumerate(units.items())}


def _bipedal_walker(obs: np.ndarray, action: np.ndarray, options: Mapping[str, Any]) -> Declared:
    # state[2] is 0.3 vx (600 / 30) / 50, and so on: bipedal_walker.py of Gymnasium 1.4.
    to_vx, to_vy = (0.3 * 2 * half / FRAMES_PER_SECOND for half in (HALF_WIDTH, HALF_HEIGHT))
    hip_speed, knee_speed = 4.0, 6.0
    torque = WALKER_TORQUE * np.clip(action, -1.0, 1.0)
    return {
        "hull velocity x": (obs[:, 2] / to_vx, "m/s"),
        "hull velocity y": (obs[:, 3] / to_vy, "m/s"),
        "hull angle": (obs[:, 0], "rad"),
        "hull angular velocity": (obs[:, 1] * FRAMES_PER_SECOND / 2, "rad/s"),
        "hip 1 angle": (obs[:, 4], "rad"),
        "knee 1 angle": (obs[:, 6] - 1.0, "rad"),
        "hip 2 angle": (obs[:, 9], "rad"),
        "knee 2 angle": (obs[:, 11] - 1.0, "rad"),
        "hip 1 speed": (obs[:, 5] * hip_speed, "rad/s"),
        "knee 1 speed": (obs[:, 7] * knee_speed, "rad/s"),
        "hip 2 speed": (obs[:, 10] * hip_speed, "rad/s"),
        "knee 2 speed": (obs[:, 12] * knee_speed, "rad/s"),
        "leg 1 contact": (obs[:, 8], ""),
        "leg 2 contact": (obs[:, 13], ""),
        # The most that the motor may exert, with the direction that it turns in.
        **{f"{name} torque": (torque[:, i], "N m") for i, name in enumerate(WALKER_JOINTS)},
    }


WALKER_JOINTS = ("hip 1", "knee 1", "hip 2", "knee 2")


def _lunar_lander(obs: np.ndarray, action: np.ndarray, options: Mapping[str, Any]) -> Declared:
    main, side = _engines(action)
    return {
        "height": (obs[:, 1] * HALF_HEIGHT, "m"),
        "distance from the pad": (obs[:, 0] * HALF_WIDTH, "m"),
        "velocity x": (obs[:, 2] * FRAMES_PER_SECOND / HALF_WIDTH, "m/s"),
        "velocity y": (obs[:, 3] * FRAMES_PER_SECOND / HALF_HEIGHT, "m/s"),
        "angle": (obs[:, 4], "rad"),
        "angular velocity": (obs[:, 5] * FRAMES_PER_SECOND / 20, "rad/s"),
        "left leg contact": (obs[:, 6], ""),
        "right leg contact": (obs[:, 7], ""),
        "main engine": (main, ""),
        "side engine": (side, ""),
    }


def _engines(action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of full power that the engines run at; the side engines' has a sign."""
    if action.ndim == 1:  # nothing, left, main, right
        return (action == 2).astype(np.float32), np.choose(action, [0.0, -1.0, 0.0, 1.0])
    throttle, steer = action[:, 0], action[:, 1]
    main = np.where(throttle > 0.0, 0.5 + 0.5 * np.clip(throttle, 0.0, 1.0), 0.0)
    return main, np.where(np.abs(steer) > 0.5, np.sign(steer) * np.clip(np.abs(steer), 0.5, 1.0), 0.0)


def _cart_pole(obs: np.ndarray, action: np.ndarray, options: Mapping[str, Any]) -> Declared:
    force = float(options.get("force", 10.0))
    return {
        "pole angle": (obs[:, 2], "rad"),
        "pole angular velocity": (obs[:, 3], "rad/s"),
        "cart position": (obs[:, 0], "m"),
        "cart velocity": (obs[:, 1], "m/s"),
        "force": (np.where(action == 1, force, -force), "N"),
    }


def _pendulum(obs: np.ndarray, action: np.ndarray, options: Mapping[str, Any]) -> Declared:
    seen = {"angular velocity": (obs[:, 2], "rad/s")} if obs.shape[1] > 2 else {}
    return {
        "angle": (np.arctan2(obs[:, 1], obs[:, 0]), "rad"),
        **seen,
        "torque": (np.clip(action[:, 0], -2.0, 2.0), "N m"),
    }


def _acrobot(obs: np.ndarray, action: np.ndarray, options: Mapping[str, Any]) -> Declared:
    first, second = np.arctan2(obs[:, 1], obs[:, 0]), np.arctan2(obs[:, 3], obs[:, 2])
    return {
        "tip height": (-np.cos(first) - np.cos(first + second), "m"),
        "first angle": (first, "rad"),
        "second angle": (second, "rad"),
        "first angular velocity": (obs[:, 4], "rad/s"),
        "second angular velocity": (obs[:, 5], "rad/s"),
        "torque": (action.astype(np.float32) - 1.0, "N m"),
    }


def _mountain_car(obs: np.ndarray, action: np.ndarray, options: Mapping[str, Any]) -> Declared:
    if action.ndim == 1:
        push, power = action - 1.0, float(options.get("power", 0.001))
    else:
        push, power = np.clip(action[:, 0], -1.0, 1.0), float(options.get("power", 0.0015))
    return {
        "position": (obs[:, 0], "m"),
        "velocity": (obs[:, 1], "m/step"),
        "height": (0.45 * np.sin(3 * obs[:, 0]) + 0.55, "m"),
        "push": (power * push, "m/step²"),
    }


def _driving(obs: np.ndarray, action: np.ndarray, options: Mapping[str, Any]) -> Declared:
    pushed = np.clip(action, -1.0, 1.0)
    return {
        "speed": (obs[:, 0] * 10.0, "m/s"),
        "speed limit": (obs[:, 1] * 10.0, "m/s"),
        "offset from the route": (obs[:, 2], "lanes"),
        "acceleration": (6.0 * pushed[:, 0], "m/s^2"),
        "steering": (0.5 * pushed[:, 1], "rad"),
    }


_lander = Meaning(_lunar_lander, ("idle", "left", "main", "right"))
_walker = Meaning(_bipedal_walker, WALKER_JOINTS)
_meanings: dict[str, Meaning] = {
    "BipedalWalker-v3": _walker,
    "BipedalWalkerHardcore-v3": _walker,
    "LunarLander-v2": _lander,
    "LunarLander-v3": _lander,
    "LunarLanderContinuous-v2": Meaning(_lunar_lander, ("main", "side")),
    "LunarLanderContinuous-v3": Meaning(_lunar_lander, ("main", "side")),
    "CartPole-v0": Meaning(_cart_pole, ("left", "right")),
    "CartPole-v1": Meaning(_cart_pole, ("left", "right")),
    "Pendulum-v1": Meaning(_pendulum, ("torque",)),
    "CartPoleNoVelocity-v1": Meaning(_components({"cart position": "m", "pole angle": "rad"}), ("left", "right")),
    "PendulumNoVelocity-v1": Meaning(_pendulum, ("torque",)),
    "TMaze-v1": Meaning(_components({"sign": "", "junction": ""}), ("left", "right", "forward")),
    "Acrobot-v1": Meaning(_acrobot, ("-1", "0", "+1")),
    "MountainCar-v0": Meaning(_mountain_car, ("left", "coast", "right")),
    "MountainCarContinuous-v0": Meaning(_mountain_car, ("push",)),
    "driving": Meaning(_driving, ("acceleration", "steering")),
}
