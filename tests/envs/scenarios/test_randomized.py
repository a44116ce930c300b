"""Domain randomisation: numbers of an environment are drawn for every episode, from ranges in options."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reach import Reach

import ludus
from ludus.envs.native.classic_control import CLASSIC, CartPole
from ludus.envs.scenarios.randomized import Randomized, Range
from ludus.types import Course, LudusError

KEYS = jax.random.split(jax.random.key(1), 1000)


def drawn(batch: Any, difficulty: float = 1.0) -> dict[str, np.ndarray]:
    chances = batch.chances(Course({"difficulty": jnp.float32(difficulty)}))
    return jax.device_get(jax.jit(batch.reset)(KEYS, chances).env["drawn"])


@pytest.mark.requirement("S1.34", "S2.5")
def test_numbers_are_drawn_from_their_ranges():
    ranges = {"half_length": "uniform:0.3:0.8", "force": "loguniform:5:20"}
    numbers = drawn(ludus.make_env("CartPole-v1", len(KEYS), randomize=ranges))
    assert numbers.keys() == {"half_length", "force"}
    for name, low, high in (("half_length", 0.3, 0.8), ("force", 5.0, 20.0)):
        values = numbers[name]
        assert values.min() >= low and values.max() <= high
        assert values.min() < low + 0.05 * (high - low) and values.max() > high - 0.05 * (high - low)
    assert abs(np.median(numbers["force"]) - 10.0) < 1.0, "even in the logarithm"
    assert abs(np.corrcoef(numbers["force"], numbers["half_length"])[0, 1]) < 0.15, "each by a key of its own"
    alone = drawn(ludus.make_env("CartPole-v1", len(KEYS), randomize={"force": "loguniform:5:20"}))
    np.testing.assert_array_equal(alone["force"], numbers["force"], "whatever else is drawn")


@pytest.mark.requirement("S1.34")
def test_difficulty_widens_ranges_from_the_environments_own_value():
    batch = ludus.make_env("CartPole-v1", len(KEYS), randomize={"gravity": "uniform:5:15", "force": "loguniform:5:40"})
    assert batch.env.parameters == {"difficulty": 1.0}
    nothing, half = drawn(batch, 0.0), drawn(batch, 0.5)
    np.testing.assert_allclose(nothing["gravity"], 9.8, rtol=1e-6)
    np.testing.assert_allclose(nothing["force"], 10.0, rtol=1e-5)
    assert half["gravity"].min() >= 9.8 - 2.4 - 1e-5 and half["gravity"].max() <= 9.8 + 2.6 + 1e-5
    assert half["force"].min() >= 10 / 2**0.5 - 1e-4 and half["force"].max() <= 20 + 1e-4
    np.testing.assert_array_equal(drawn(batch, 7.0)["gravity"], drawn(batch, 1.0)["gravity"])


@pytest.mark.requirement("S1.34")
def test_an_episode_is_played_with_its_numbers_to_its_end():
    env = Randomized(CartPole(), (("gravity", Range(5.0, 15.0)), ("half_length", Range(0.3, 0.8))))
    state, obs = env.begin({"gravity": jnp.float32(12.0), "half_length": jnp.float32(0.7)}, KEYS[0])
    plain = CartPole(gravity=12.0, half_length=0.7)
    own, shown = plain.reset(KEYS[0])
    np.testing.assert_array_equal(obs, shown)
    for action in (0, 1, 1, 0, 1):
        state, step = env.step(state, jnp.int32(action), KEYS[1])
        own, wanted = plain.step(own, jnp.int32(action), KEYS[1])
        np.testing.assert_allclose(step.obs, wanted.obs, rtol=1e-5)
    assert float(state["drawn"]["gravity"]) == 12.0
    assert (env.max_episode_steps, env.return_threshold) == (500, 475.0)


@pytest.mark.parametrize("name", CLASSIC)
def test_every_native_environment_can_be_randomised(name):
    field = {"MountainCar-v0": "power", "MountainCarContinuous-v0": "power"}.get(name, "gravity")
    value = getattr(CLASSIC[name](), field)
    batch = ludus.make_env(name, 4, randomize={field: f"uniform:{0.9 * value}:{1.1 * value}"})
    state = jax.jit(batch.reset)(KEYS[:4])
    draw = jax.tree.map(lambda x: x[0], batch.draw(KEYS[0], KEYS[1], 1))
    action = jnp.zeros((4, *batch.action_space.shape), batch.action_space.dtype)
    assert np.isfinite(jax.tree.leaves(jax.jit(batch.step)(state, action, draw)[1].obs)[0]).all()


@pytest.mark.requirement("S2.5")
def test_evaluation_can_have_ranges_of_its_own():
    batch = ludus.make_env(
        "CartPole-v1", 4, randomize={"gravity": "uniform:5:10"}, eval_randomize={"gravity": "uniform:10:15"}
    )
    held_out = batch.held_out(0, 200)["gravity"]
    assert held_out.min() >= 10.0 and held_out.max() > 14.0
    assert drawn(batch.remake(len(KEYS)))["gravity"].max() <= 10.0
    same = ludus.make_env("CartPole-v1", 4, randomize={"gravity": "uniform:5:10"}).held_out(0, 200)["gravity"]
    assert same.min() < 6.0 and same.max() <= 10.0


@dataclass(frozen=True)
class Picky(CartPole):
    """Looks at its numbers in Python."""

    def reset(self, key):
        return super().reset(key) if self.gravity > 0 else ((), ())


WRONG = {
    "upside down": (CartPole, {"gravity": "uniform:15:5"}, "gravity=uniform:15:5: is upside down; write uniform:5:15"),
    "unknown": (CartPole, {"gravty": "uniform:5:15"}, "has no such number; did you mean gravity?"),
    "no number": (CartPole, {"num_envs": "uniform:5:15"}, "has no such number; it has gravity, cart_mass"),
    "no range": (CartPole, {"gravity": "9.8"}, "gravity=9.8: must be uniform:LOW:HIGH or loguniform:LOW:HIGH"),
    "a number": (CartPole, {"gravity": 9.8}, "must be uniform:LOW:HIGH"),
    "words": (CartPole, {"gravity": "uniform:a:b"}, "must be uniform:LOW:HIGH"),
    "infinite": (CartPole, {"gravity": "uniform:1:inf"}, "must be uniform:LOW:HIGH"),
    "three": (CartPole, {"gravity": "uniform:1:2:3"}, "must be uniform:LOW:HIGH"),
    "logarithm": (CartPole, {"gravity": "loguniform:0:2"}, "loguniform needs numbers above 0"),
    "a text": (CartPole, "gravity", "must have a range for each name"),
    "scenarios": (Reach, {"details": "uniform:1:2"}, "draws scenarios of its own"),
    "picky": (Picky, {"gravity": "uniform:5:15"}, "randomize of gravity: Picky cannot do with traced numbers"),
}


@pytest.mark.parametrize(("kind", "ranges", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_drawn_is_said_in_one_line(kind, ranges, message):
    with pytest.raises(LudusError) as refused:
        ludus.make_env(kind, randomize=ranges)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_gymnasiums_environments_are_not_randomised():
    with pytest.raises(LudusError, match=r"env_options.randomize: gym:CartPole-v1 is not written in JAX"):
        ludus.make_env("gym:CartPole-v1", randomize={"gravity": "uniform:5:15"})
    with pytest.raises(LudusError, match=r"curriculum.gravity: gym:CartPole-v1 is not written in JAX"):
        ludus.make_env("gym:CartPole-v1").led(["gravity"])


@pytest.mark.requirement("S1.34")
def test_a_curriculum_can_lead_numbers_and_what_else_an_environment_names():
    cart = ludus.make_env("CartPole-v1", 3)
    assert cart.led([]) is cart
    led = cart.led(["gravity", "force"])
    assert led.env.parameters == {"gravity": pytest.approx(9.8), "force": 10.0}
    chances = led.chances(Course({"gravity": jnp.float32(3.0), "force": jnp.float32(4.0)}))
    state = led.reset(KEYS[:3], chances)
    np.testing.assert_array_equal(state.env["drawn"]["gravity"], [3.0] * 3)
    np.testing.assert_array_equal(led.held_out(0, 3)["gravity"], np.float32([9.8] * 3), "evaluation is the full task")
    both = ludus.make_env("CartPole-v1", randomize={"force": "uniform:5:15"}).led(["difficulty", "gravity"])
    assert both.env.parameters.keys() == {"difficulty", "gravity"}
    assert ludus.make_env(Reach).led(["difficulty"]).env == Reach()
    for env, name, message in (
        (both, "force", "env_options.randomize draws it already"),
        (cart, "gravty", "has no such parameter; did you mean gravity"),
        (cart, "difficulty", "has no such parameter"),
        (ludus.make_env(Reach), "details", "has no such parameter; it has difficulty"),
    ):
        with pytest.raises(LudusError, match=message):
            env.led([name])
