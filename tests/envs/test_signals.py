"""Signals equal what the simulators themselves hold: bodies and joints of Box2D, states of classic control."""

import warnings

import gymnasium
import numpy as np
import pytest

from ludus.envs.signals import action_names, register_signals, signals_of
from ludus.types import LudusError

TOLERANCE = {"rtol": 2e-6, "atol": 2e-6}
"""Observations are float32; undoing their scalings is one more rounding."""
STEPS = 120


class Joint:
    """A joint of Box2D, which cannot be asked what its motor was set to."""

    def __init__(self, joint):
        object.__setattr__(self, "joint", joint)

    def __getattr__(self, name):
        return getattr(self.joint, name)

    def __setattr__(self, name, value):
        setattr(self.joint, name, value)
        object.__setattr__(self, name, value)


def walker(env, action):
    env.joints = [joint if isinstance(joint, Joint) else Joint(joint) for joint in env.joints]
    hull, joints, legs = env.hull, env.joints, env.legs
    names = ("hip 1", "knee 1", "hip 2", "knee 2")
    return {
        "hull angle": hull.angle,
        "hull angular velocity": hull.angularVelocity,
        "hull velocity x": hull.linearVelocity.x,
        "hull velocity y": hull.linearVelocity.y,
        **{f"{name} angle": joint.angle for name, joint in zip(names, joints, strict=True)},
        **{f"{name} speed": joint.speed for name, joint in zip(names, joints, strict=True)},
        "leg 1 contact": legs[1].ground_contact,
        "leg 2 contact": legs[3].ground_contact,
    }


def walker_after(env, action):
    names = ("hip 1", "knee 1", "hip 2", "knee 2")
    return {f"{n} torque": j.maxMotorTorque * np.sign(j.motorSpeed) for n, j in zip(names, env.joints, strict=True)}


def lander(env, action):
    body = env.lander
    return {
        "distance from the pad": body.position.x - 10.0,
        "height": body.position.y - env.helipad_y - 18 / 30,
        "velocity x": body.linearVelocity.x,
        "velocity y": body.linearVelocity.y,
        "angle": body.angle,
        "angular velocity": body.angularVelocity,
        "left leg contact": env.legs[0].ground_contact,
        "right leg contact": env.legs[1].ground_contact,
    }


def cart_pole(env, action):
    names = ("cart position", "cart velocity", "pole angle", "pole angular velocity")
    return {**dict(zip(names, env.state, strict=True)), "force": env.force_mag if action == 1 else -env.force_mag}


def pendulum(env, action):
    angle, speed = env.state
    return {"angle": (angle + np.pi) % (2 * np.pi) - np.pi, "angular velocity": speed}


def acrobot(env, action):
    first, second, *speeds = env.state
    return {
        "first angle": first,
        "second angle": second,
        "first angular velocity": speeds[0],
        "second angular velocity": speeds[1],
        "tip height": -np.cos(first) - np.cos(first + second),
        "torque": env.AVAIL_TORQUE[action],
    }


def mountain_car(env, action):
    position, velocity = env.state
    return {"position": position, "velocity": velocity, "height": env._height(position)}


CASES = {
    "BipedalWalker-v3": walker,
    "LunarLander-v3": lander,
    "LunarLanderContinuous-v3": lander,
    "CartPole-v1": cart_pole,
    "Pendulum-v1": pendulum,
    "Acrobot-v1": acrobot,
    "MountainCar-v0": mountain_car,
    "MountainCarContinuous-v0": mountain_car,
}


def played(id, internals):
    """Random actions: observations, actions and, for each observation, what the simulator itself holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = gymnasium.make(id, disable_env_checker=True)
        env.action_space.seed(1)
        obs, _ = env.reset(seed=1)
        rows = []
        for _ in range(STEPS):
            action = env.action_space.sample()
            held = internals(env.unwrapped, action)
            after, _, terminated, truncated, _ = env.step(action)
            if internals is walker:
                held |= walker_after(env.unwrapped, action)
            if internals is pendulum:
                held["torque"] = env.unwrapped.last_u
            rows.append((obs, action, held))
            obs = after
            if terminated or truncated:
                obs, _ = env.reset()
        env.close()
    shown, actions, held = zip(*rows, strict=True)
    return np.stack(shown), np.stack(actions), {name: np.array([row[name] for row in held]) for name in held[0]}


@pytest.mark.requirement("S4.3", "S4.19", "S4.20", "S4.24")
@pytest.mark.parametrize("id", CASES)
def test_signals_are_what_the_simulator_holds(id):
    obs, action, held = played(id, CASES[id])
    signals = signals_of(f"gym:{id}", obs, action)
    for name, values in held.items():
        np.testing.assert_allclose(signals[name].values, values, **TOLERANCE, err_msg=name)
    assert len(held) >= 3 and all(np.ptp(values) > 0 for name, values in held.items() if "contact" not in name)


def test_every_signal_of_the_walker_is_compared():
    obs, action, held = played("BipedalWalker-v3", walker)
    signals = signals_of("gym:BipedalWalker-v3", obs, action)
    assert signals.keys() == held.keys()
    assert {s.unit for s in signals.values()} == {"rad", "rad/s", "m/s", "N m", ""}


@pytest.mark.parametrize("prefix", ["", "jax:", "gym:", "envpool:"])
def test_the_library_makes_no_difference(prefix):
    obs, action = np.zeros((3, 4), np.float32), np.array([0, 1, 0])
    signals = signals_of(f"{prefix}CartPole-v1", obs, action)
    assert next(iter(signals)) == "pole angle"
    assert signals["force"].values.tolist() == [-10.0, 10.0, -10.0]
    assert action_names(f"{prefix}CartPole-v1") == ("left", "right")


def test_options_change_what_is_exerted():
    signals = signals_of("jax:CartPole-v1", np.zeros((1, 4)), np.array([1]), {"force": 3.0})
    assert signals["force"].values.tolist() == [3.0]


def test_the_landers_engines():
    discrete = signals_of("LunarLander-v3", np.zeros((4, 8)), np.arange(4))
    assert discrete["main engine"].values.tolist() == [0, 0, 1, 0]
    assert discrete["side engine"].values.tolist() == [0, -1, 0, 1]
    actions = np.array([[-1.0, 0.4], [0.5, -0.75], [1.0, 1.0]])
    continuous = signals_of("LunarLanderContinuous-v3", np.zeros((3, 8)), actions)
    assert continuous["main engine"].values.tolist() == [0, 0.75, 1]
    assert continuous["side engine"].values.tolist() == [0, -0.75, 1]


def test_anything_else_is_shown_by_index():
    obs = {"arm": np.ones((2, 3)), "eye": np.ones((2, 8, 8, 3)), "clock": np.arange(2)}
    signals = signals_of("gym:Unheard-of", obs, np.zeros((2, 2)))
    assert list(signals) == ["obs arm 0", "obs arm 1", "obs arm 2", "obs clock", "action 0", "action 1"]
    assert signals["obs clock"].values.tolist() == [0, 1]


def test_users_can_name_their_own(monkeypatch):
    monkeypatch.setattr("ludus.envs.signals._meanings", {})
    obs, action = np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros(2)
    register_signals("Mine", {"height": "m", "speed": "m/s"}, actions=("stay", "go"))
    signals = signals_of("object:Mine", obs, action)
    assert signals["speed"].values.tolist() == [2.0, 4.0] and signals["speed"].unit == "m/s"
    assert action_names("jax:Mine") == ("stay", "go")
    register_signals("gym:Mine", lambda obs, action: {"twice": (2 * obs[:, 0], "m")})
    assert signals_of("Mine", obs, action)["twice"].values.tolist() == [2.0, 6.0]


def test_what_cannot_be_declared_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("ludus.envs.signals._meanings", {})
    with pytest.raises(LudusError, match="must be units by name, or a function"):
        register_signals("Mine", 3)
    register_signals("Mine", {"a": "", "b": "", "c": ""})
    with pytest.raises(LudusError, match=r"3 names for observations of shape \(2,\)"):
        signals_of("Mine", np.zeros((4, 2)), np.zeros(4))
    register_signals("Mine", lambda obs, action: {"a": (obs, "m")})
    with pytest.raises(LudusError, match=r"signals of Mine: 'a' has shape \(4, 2\), but must have \(4,\)"):
        signals_of("Mine", np.zeros((4, 2)), np.zeros(4))
