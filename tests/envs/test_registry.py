"""Environments by name, class, function and instance; what is wrong is named in one line."""

import sys

import gymnasium
import numpy as np
import pytest

import ludus
from ludus.envs.adapters.gymnasium import GymnasiumEnv
from ludus.envs.adapters.gymnasium_spaces import frame_advice
from ludus.envs.batch import JaxEnv
from ludus.envs.native.classic_control import CartPole
from ludus.envs.registry import _registered
from ludus.spaces import Box, Discrete
from ludus.training.config import compose


class Walk(gymnasium.Env):
    """A user's own environment: a walk on a line."""

    observation_space = gymnasium.spaces.Box(-5, 5, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 3):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x = 0, float(self.np_random.uniform(-1, 1))
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.t, self.x = self.t + 1, self.x + (1 if action == 1 else -1)
        return np.array([self.x], np.float32), self.x, self.t == self.length, False, {}


class Screen(gymnasium.Env):
    """Shows black frames of any shape."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...]):
        self.observation_space = gymnasium.spaces.Box(0, 255, tuple(shape), np.uint8)

    def reset(self, *, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.uint8), {}


@pytest.fixture
def registered():
    before = dict(_registered)
    yield
    _registered.clear()
    _registered.update(before)


def test_the_fastest_faithful_backend_is_chosen_and_named():
    assert ludus.make_env("CartPole-v1", 4).id == "jax:CartPole-v1"
    assert ludus.make_env("jax:CartPole-v1", 4) == ludus.make_env("CartPole-v1", 4)
    assert ludus.make_env("gym:CartPole-v1", 2).id == "gym:CartPole-v1"
    lander = ludus.make_env("LunarLander-v3", 2)
    assert lander.id == "gym:LunarLander-v3"
    assert isinstance(lander, GymnasiumEnv)


def test_native_and_gymnasium_spaces_agree():
    for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"):
        native, gym = ludus.make_env(name), ludus.make_env(f"gym:{name}")
        assert type(native.observation_space) is type(gym.observation_space)
        np.testing.assert_allclose(native.observation_space.bounds, gym.observation_space.bounds, rtol=1e-6)
        assert native.action_space == gym.action_space


@pytest.mark.requirement("S4.2")
@pytest.mark.parametrize("make", [Walk, lambda: Walk(), Walk()], ids=["class", "function", "instance"])
def test_a_users_own_gymnasium_environment(make):
    env = ludus.make_env(make, num_envs=3)
    assert (env.observation_space, env.action_space) == (Box(-5.0, 5.0, (1,)), Discrete(2))
    first = np.array(env.reset([0, 1, 2]))
    assert len(np.unique(first)) == 3, "each environment has a seed of its own"
    np.testing.assert_array_equal(first, env.remake(3).reset([0, 1, 2]))
    trainer = ludus.Trainer(
        ludus.PPO(batch_size=48, minibatch_size=16),
        env,
        ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0),
    )
    assert trainer.train(total_steps=96).episodes == 30


def test_a_users_own_jax_environment_and_its_options(registered):
    assert isinstance(ludus.make_env(CartPole(gravity=5.0), 2), JaxEnv)
    assert ludus.make_env("CartPole-v1", 2, gravity=5.0).env.gravity == 5.0
    ludus.register_env("Moon", lambda gravity=1.6: CartPole(gravity=gravity))
    assert ludus.make_env("Moon", 2).id == "jax:Moon"
    assert ludus.make_env("jax:Moon", 2, gravity=2.0).env.gravity == 2.0


@pytest.mark.requirement("S1.15")
@pytest.mark.parametrize("env", ["jax:Pendulum-v1", "gym:Pendulum-v1"])
def test_the_time_limit_is_an_option(env):
    env = ludus.make_env(env, 2, max_episode_steps=7)
    trainer = ludus.Trainer(
        ludus.PPO(batch_size=28, minibatch_size=28),
        env,
        ludus.Settings(verbose=False, eval_frequency=0, eval_episodes_final=0),
    )
    assert trainer.train(total_steps=28).episodes == 4
    assert trainer.evaluate(3).lengths.tolist() == [7, 7, 7]


def test_a_registered_gymnasium_environment(registered):
    ludus.register_env("Walk", Walk)
    env = ludus.make_env("Walk", 2, length=5)
    assert env.id == "gym:Walk"
    assert env.envs[0].length == 5


def test_same_step_reset_keeps_the_true_successor():
    env = ludus.make_env(Walk, num_envs=2)
    obs = np.array(env.reset([0, 1]))
    for t in range(1, 7):
        step = env.step(np.array([1, 0]))
        np.testing.assert_allclose(step.next_obs[:, 0], obs[:, 0] + [1, -1], rtol=1e-6)
        assert step.terminated.all() == (t % 3 == 0)
        if t % 3 == 0:
            assert (np.abs(step.obs) <= 1).all() and (np.abs(step.next_obs - step.obs) > 1e-3).all()
        else:
            np.testing.assert_array_equal(step.obs, step.next_obs)
        obs = np.array(step.obs)


def test_time_limits_truncate():
    env = ludus.make_env("gym:MountainCar-v0", num_envs=1)
    env.reset([0])
    steps = [env.step(np.array([1])) for _ in range(200)]
    del steps[:-1]
    assert steps[0].truncated.all() and not steps[0].terminated.any()


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("CartPol-v1", {}, "env=CartPol-v1: no such environment; did you mean"),
        ("jax:CartPol-v1", {}, "no such native environment; did you mean CartPole-v1?"),
        ("brax:ant", {}, "no library 'brax' yet; prefixes are jax:, gym:, envpool:"),
        ("CartPole-v1", {"num_envs": 0}, "num_envs=0: must be an integer of at least 1"),
        ("CartPole-v1", {"num_envs": -3}, "num_envs=-3"),
        ("CartPole-v1", {"gravitation": 3}, "jax:CartPole-v1 does not take them"),
        ("gym:CartPole-v1", {"gravitation": 3}, "does not take them"),
        ("CartPole-v1", {"max_episode_steps": 0}, "env_options.max_episode_steps=0: must be an integer of at least 1"),
        ("CartPole-v1", {"gravity": "abc"}, "env_options.gravity='abc': must be a finite number (its default is 9.8)"),
        ("CartPole-v1", {"gravity": [1]}, "env_options.gravity=[1]: must be a finite number"),
        (3, {}, "env=3: must be an id"),
        ("Taxi-v9", {}, "env=Taxi-v9: no such environment"),
        ("my_walk", {}, "env=my_walk: no such environment; a name of your own is known where ludus.register_env"),
        ("CartPole", {}, "env=CartPole: names no version; did you mean CartPole-v1?"),
        ("gym:MountainCarContinuous", {}, "names no version; did you mean MountainCarContinuous-v0?"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(env, options, message):
    with pytest.raises(ludus.LudusError) as caught:
        ludus.make_env(env, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class Unmakable(Walk):
    """Cannot be made: `fault` says why."""

    def __init__(self, fault: Exception):
        raise fault


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (RuntimeError("no GPU\nfound"), "env=Unmakable-v0: cannot be made (RuntimeError: no GPU found)"),
        (AssertionError("modes differ"), "env=Unmakable-v0: cannot be made (AssertionError: modes differ)"),
        (AssertionError(), "env=Unmakable-v0: cannot be made (AssertionError at test_registry.py:"),
    ],
)
def test_what_the_librarys_own_code_says_is_told(fault, message):
    gymnasium.register("Unmakable-v0", Unmakable, kwargs={"fault": fault})
    try:
        with pytest.raises(ludus.LudusError) as caught:
            ludus.make_env("Unmakable-v0")
    finally:
        del gymnasium.registry["Unmakable-v0"]
    assert message in str(caught.value) and "env_options" not in str(caught.value)


@pytest.mark.parametrize(("name", "make"), [("", Walk), ("a:b", Walk), ("walk", 3)])
def test_a_bad_registration_is_refused(name, make):
    with pytest.raises(ludus.LudusError, match="register_env"):
        ludus.register_env(name, make)


def test_a_missing_gymnasium_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "ludus.envs.adapters.gymnasium", raising=False)
    with pytest.raises(ludus.LudusError, match="needs Gymnasium"):
        ludus.make_env("LunarLander-v3")


class Faulty(CartPole):
    """A user's JAX environment with one thing wrong."""

    wrong = ""

    def reset(self, key):
        state, obs = super().reset(key)
        return obs if self.wrong == "reset" else (state, obs)

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        changes = {
            "obs": {"obs": step.obs[:3]},
            "reward": {"reward": np.ones(1)},
            "terminated": {"terminated": 1.0},
        }
        step = step._replace(**changes.get(self.wrong, {}))
        if self.wrong == "tuple":
            return tuple(step)
        return (state.astype(np.int32) if self.wrong == "state" else state), step


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("reset", "reset(key) must return (state, obs)"),
        ("obs", "the observation of step has shape (3,), but must have (4,)"),
        ("reward", "the reward has shape (1,), but must have ()"),
        ("terminated", "terminated and truncated must be booleans"),
        ("tuple", "step(state, action, key) must return (state, ludus.Step)"),
        ("state", "step must return a state of the same shapes and types as reset"),
    ],
)
def test_a_jax_environment_that_breaks_the_contract_is_refused_by_name(wrong, message):
    kind = type("Faulty", (Faulty,), {"wrong": wrong})
    with pytest.raises(ludus.LudusError) as caught:
        ludus.make_env(kind(), 2)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gymnasium_environment_of_the_old_kind_is_refused_by_name():
    class Old(Walk):
        def step(self, action):
            return super().step(action)[:4]

    env = ludus.make_env(Old, 1)
    env.reset([0])
    with pytest.raises(ludus.LudusError, match=r"step\(\) must return 5 values, as Gymnasium says, got 4 values"):
        env.step(np.array([0]))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((210, 160, 3), ("frames of 210 x 160 x 3 take 4.8 times as long", "gymnasium.wrappers:ResizeObservation")),
        ((3, 210, 160), ("frames of 3 x 210 x 160", "gymnasium.wrappers:ResizeObservation")),
        ((4, 96, 96, 3), ("will see 110592 numbers in a row", "gymnasium.wrappers:GrayscaleObservation")),
        ((96, 96, 3), ()),
        ((4, 84, 84), ()),
        ((84, 84), ()),
        ((5, 5, 7, 3), ()),
    ],
    ids=str,
)
def test_frames_that_networks_see_slowly_or_not_as_pictures_get_a_warning_that_names_the_wrapper(shape, words, caplog):
    ludus.make_env(Screen, shape=shape).close()
    said = [record.getMessage() for record in caplog.records if record.name.startswith("ludus")]
    assert len(said) == bool(words) and all(word in said[0] for word in words)
    assert all("\n" not in line and "object:Screen" in line for line in said)


def test_atari_is_told_of_its_own_wrapper():
    (line,) = frame_advice("gym:ALE/Pong-v5", Box(0, 255, (210, 160, 3), "uint8"))
    assert "env_options.frameskip=1 'env_wrappers=[gymnasium.wrappers:AtariPreprocessing," in line


def test_the_wrappers_that_a_warning_names_make_pictures_of_frame_stacks():
    (line,) = frame_advice("object:Screen", Box(0, 255, (4, 96, 96, 3), "uint8"))
    typed = line[line.index("env_wrappers=") : -1]
    env = ludus.make_env(Screen, shape=(96, 96, 3), env_wrappers=compose(["env=gym:CarRacing-v3", typed]).env_wrappers)
    assert env.observation_space == Box(0, 255, (4, 96, 96), "uint8") and env.reset([0]).shape == (1, 4, 96, 96)
    env.close()


def test_wrappers_get_tuples_for_the_lists_that_a_command_line_has():
    wrapper = {"name": "gymnasium.wrappers:ReshapeObservation", "shape": [48, 12]}
    env = ludus.make_env(Screen, shape=(24, 24), env_wrappers=[wrapper])
    assert env.observation_space.shape == (48, 12) and env.env_wrappers == (wrapper,)
    env.close()
