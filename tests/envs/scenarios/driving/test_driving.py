"""The simulator as an environment: roads, traffic, observations, episodes, and the fixed evaluation set."""

import hashlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.envs.scenarios.driving import drivers, observation, roads, traffic, world
from ludus.envs.scenarios.driving.environment import Driving
from ludus.envs.scenarios.driving.geometry import NEVER
from ludus.envs.scenarios.held_out import Generated
from ludus.envs.scenarios.stored import scenarios_of
from ludus.spaces import join_groups

pytestmark = pytest.mark.slow
COUNT = 128
RULES = ("expert", "idm", "constant", "random")


@pytest.fixture(scope="module")
def held_out():
    """The first scenarios of the evaluation set, one array for each name."""
    env = Driving().generator()
    arrays = {name: x[:COUNT] for name, x in Generated(env, "evaluation", 0).up_to(COUNT).items()}
    return jax.tree.map(np.asarray, scenarios_of(env, arrays))


@pytest.fixture(scope="module")
def played(held_out):
    """What the rules reach there, and where they and the others were: all by one program."""
    env = Driving()

    @jax.jit
    @jax.vmap
    def play(scenario, key, rule):
        state, _ = env.begin(scenario, key)

        def step(carry, key):
            state, over = carry
            view = world.view(state.roads, state.crew, state.world)
            recorded = state.log.action[state.world.step]
            chance = jax.random.uniform(key, (2,), float, -1.0, 1.0)
            choices = jnp.stack([recorded, drivers.idm(view), drivers.constant(view), chance])
            after, outcome = env.step(state, choices[rule], key)
            told = {**outcome.info, "over": over, "ended": outcome.terminated, "obs": outcome.obs}
            told |= {"pose": after.world.motion.pose, "cars": traffic.poses(after.roads, after.world.cars)}
            return (after, over | outcome.terminated), told

        return jax.lax.scan(step, (state, jnp.bool_(False)), jax.random.split(key, 80))[1]

    made = {}
    for rule, name in enumerate(RULES):
        keys = jax.random.split(jax.random.key(rule), COUNT)
        made[name] = jax.device_get(play(held_out, keys, jnp.full(COUNT, rule)))
    return made


def last(told, name: str) -> np.ndarray:
    """A figure at the end of each episode."""
    ends = (~told["over"]).sum(1) - 1
    return told[name][np.arange(COUNT), ends]


@pytest.mark.requirement("S2.5", "S2.28")
def test_the_evaluation_set_is_hard_enough(held_out, played):
    names = [*Driving.templates["training"], *Driving.templates["evaluation"]]
    kinds = [names[number] for number in held_out["roads"].template]
    assert np.mean([kind != "S-bend" for kind in kinds]) >= 0.4
    moving = (held_out["crew"].is_there & (held_out["cars"].speed > 0.5)).sum(1)
    assert np.median(moving) >= 8
    red = [
        any(roads.lights(jax.tree.map(lambda x, i=i: x[i], held_out["roads"]), t / 2).is_red[route] for t in range(17))
        for i, route in enumerate(held_out["roads"].route)
    ]
    assert np.mean(red) >= 0.25
    accuracy = {name: last(told, "accuracy").mean() for name, told in played.items()}
    assert accuracy["expert"] == 1.0
    assert 0.6 <= accuracy["idm"] <= 0.9
    assert accuracy["constant"] <= 0.3
    assert accuracy["random"] <= 0.05


@pytest.mark.requirement("S2.5")
def test_the_evaluation_set_is_the_one_that_was_fixed(held_out):
    """Its integers are the same on every machine; its floats may be rounded otherwise in their last bits."""
    fixed = json.loads((Path(__file__).parent / "evaluation_set.json").read_text())
    integers = [x for x in jax.tree.leaves(held_out) if x.dtype.kind in "ib"]
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(x.astype(np.int32)).tobytes() for x in integers))
    places = np.concatenate([held_out["start"].pose, held_out["log"].progress[:, None]], axis=1)
    np.testing.assert_allclose(places[:8], fixed["starts"], atol=0.05)
    assert digest.hexdigest() == fixed["integers_sha256"]


@pytest.mark.requirement("S2.5")
def test_training_never_shows_a_scenario_of_evaluation(held_out):
    env = Driving()
    training = scenarios_of(env, {name: x[:64] for name, x in Generated(env, "training", 0).up_to(64).items()})
    kinds = set(np.asarray(training["roads"].template).tolist())
    assert kinds.isdisjoint(held_out["roads"].template.tolist())
    assert kinds <= set(range(len(Driving.templates["training"])))
    there, here = (np.asarray(each["roads"].width)[:, 0] for each in (training, held_out))
    assert there.max() <= 3.75 <= here.min(), "no lane has a width that both have"


def test_logs_are_what_the_expert_did(held_out, played):
    told = played["expert"]
    track = np.concatenate([told["pose"][..., :2]], axis=1)
    np.testing.assert_allclose(track, held_out["log"].track[:, 1:, :2], atol=0.05)
    assert last(told, "log_divergence").max() < 0.05
    np.testing.assert_allclose(last(told, "progress_ratio"), 1.0, atol=0.02)


def test_most_scenarios_have_no_collision_among_the_cars_around(held_out, played):
    from ludus.envs.scenarios.driving.geometry import overlaps

    cars = played["expert"]["cars"][:, ::8]
    size = np.broadcast_to(held_out["crew"].size[:, None], (*cars.shape[:3], 2))
    hit = overlaps(cars[:, :, :, None], size[:, :, :, None], cars[:, :, None], size[:, :, None])
    there = held_out["crew"].is_there[:, None, :, None] & held_out["crew"].is_there[:, None, None]
    hit = np.asarray(hit) & there & ~np.eye(cars.shape[2], dtype=bool)
    # Those that have left the map lie on top of each other, where nobody sees them.
    far = np.abs(cars[:, :, :, None, :2] - cars[:, :, None, :, :2]).sum(-1) < 0.1
    assert (hit & ~far).any(axis=(1, 2, 3)).mean() < 0.3
    assert np.isfinite(cars).all()


def test_observations_are_finite_within_bounds_and_come_apart(held_out, played):
    env = Driving()
    obs = played["idm"]["obs"]
    assert np.isfinite(obs).all() and np.abs(obs).max() <= observation.MOST
    groups = observation.unflatten(obs, env.sizes)
    np.testing.assert_array_equal(join_groups(env.observation_space, groups), obs)
    known = {group.name: group for group in observation.groups(env.sizes)}
    assert {name: x.shape[2:] for name, x in groups.items()} == {name: group.shape for name, group in known.items()}
    for name in ("lights", "objects", "road"):
        tokens, there = groups[name], groups[name][..., known[name].valid]
        assert set(np.unique(there)) == {0.0, 1.0} and (tokens[there == 0] == 0).all(), name
    ahead = groups["targets"][:, 0, :, 0]
    assert (np.diff(ahead, axis=1) > -0.2).all(), "targets lie farther and farther ahead"
    np.testing.assert_allclose(
        groups["past"][:, :, -1, :4], np.broadcast_to([0, 0, 1, 0], (*obs.shape[:2], 4)), atol=1e-6
    )
    seen = groups["objects"]
    distance = np.where(seen[..., -1] > 0, np.hypot(seen[..., 0], seen[..., 1]), np.inf)
    assert (np.diff(np.minimum(distance, 1e3), axis=-1) >= -1e-3).all(), "the nearest one first"


def test_two_paths_that_meet_know_it_of_each_other(held_out):
    road = held_out["roads"]
    meets = (road.enter < NEVER / 2) & (road.enter.swapaxes(1, 2) < NEVER / 2)
    assert (road.first[meets] ^ road.first.swapaxes(1, 2)[meets]).all(), "exactly one of the two goes first"
    itself = np.arange(roads.PATHS)
    own = road.along[:, itself, itself][road.is_there]
    np.testing.assert_allclose(own, np.broadcast_to(np.arange(roads.POINTS) * roads.SPACING, own.shape), atol=1e-2)


@pytest.mark.requirement("S2.30")
@pytest.mark.parametrize("variant", ["noisy", "adversarial"])
def test_variants_begin_otherwise_and_end_alike_every_time(held_out, variant):
    env = Driving(variant=variant)
    keys = jax.random.split(jax.random.key(3), COUNT)
    begin = jax.jit(jax.vmap(env.begin))
    state = jax.device_get(begin(held_out, keys)[0])
    again = jax.device_get(begin(held_out, keys)[0])
    jax.tree.map(np.testing.assert_array_equal, state, again)
    moved = state.world.motion.pose - held_out["start"].pose
    if variant == "noisy":
        far = np.linalg.norm(moved[:, :2], axis=1)
        assert far.max() <= 1.0 and far.mean() > 0.5
        assert np.abs(np.rad2deg(moved[:, 2])).max() <= 5.001
        ratio = state.world.motion.speed / held_out["start"].speed
        assert 0.8 <= ratio.min() < 0.85 and 1.15 < ratio.max() <= 1.2
    else:
        assert np.abs(moved).max() == 0.0
        kinds = set(state.adversary.what.tolist())
        assert kinds >= {world.BRAKES, world.RUNS_RED}
        assert (state.adversary.what != world.NOBODY).mean() > 0.7


def test_options_that_change_no_scenario_share_them():
    shorter = ludus.make_env("driving", 4, scenario_length=6)
    assert shorter.max_episode_steps == 6 and shorter.num_held_out == 1000
    assert not shorter.makes_starts_ahead
    one, other = Driving(driver="idm", objects=3, reward={"progress": 2.0}), Driving(variant="noisy")
    assert one != other and one.generator() == other.generator()
    assert one.generator() != Driving(num_cars=9).generator()


@pytest.mark.requirement("S2.29")
def test_the_kinds_of_scenarios_are_told(held_out):
    names = ludus.make_env("driving", 4).kinds_held_out(5)
    every = [*Driving.templates["training"], *Driving.templates["evaluation"]]
    assert names == [every[number] for number in held_out["roads"].template[:5]]
