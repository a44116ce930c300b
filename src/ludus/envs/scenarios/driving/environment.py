"""The environment `driving`: generated roads with traffic, in which one car is driven along its route."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ludus.envs.scenarios.base import Parameters, Scenario, ScenarioEnvironment, Split
from ludus.envs.scenarios.driving import drivers, metrics, templates
from ludus.envs.scenarios.driving.dynamics import DT, Motion
from ludus.envs.scenarios.driving.observation import Own, SeenBefore, Sizes, observed, remembered, row, space
from ludus.envs.scenarios.driving.options import checked
from ludus.envs.scenarios.driving.rewards import ENDING, Happening, ended, reward_of
from ludus.envs.scenarios.driving.roads import LENGTH, Roads, lights, place
from ludus.envs.scenarios.driving.soundness import defects
from ludus.envs.scenarios.driving.traffic import SIZE, Cars, Crew, is_on_map, poses
from ludus.envs.scenarios.driving.world import (
    Adversary,
    Log,
    World,
    advance,
    adversary_of,
    begun,
    nobody,
    populated,
    recorded,
    view,
)
from ludus.spaces import Box, join_groups
from ludus.types import Array, Step

PAST = 5
"""Poses that comfort is judged by."""
LEAST_SPEED = 15.0 / 8.0
"""Metres a second that the expert must make, or a scenario is not worth playing."""


class State(NamedTuple):
    """A running episode."""

    roads: Roads
    crew: Crew
    log: Log
    world: World
    past: SeenBefore
    tally: metrics.Tally
    adversary: Adversary
    start: jax.Array
    """Metres along the route where the episode began."""
    key: jax.Array
    """Of what a random driver does."""


@dataclass(frozen=True)
class Driving(ScenarioEnvironment):
    """Drive along a route through traffic: acceleration and steering, ten times a second for eight seconds."""

    reward: Any = ()
    """Weights of the reward's terms by name, where they are others than the usual ones."""
    termination_keys: Any = ENDING
    """What ends an episode."""
    others: str = "idm"
    """How the cars around drive: by the intelligent driver model, or as in the log of the scenario."""
    driver: str = "agent"
    """Who drives: the agent's actions, or a rule in their place."""
    variant: str = "none"
    """What is made harder: nothing, noisy starts, or an adversary."""
    num_cars: int = 15
    scenario_length: int = 80
    observation: str = "flat"
    past_steps: int = 5
    objects: int = 8
    object_steps: int = 1
    road_points: int = 24
    road_box: Any = (70.0, 5.0, 20.0)
    traffic_lights: int = 1
    targets: int = 5
    target_gap: float = 6.0

    parameters: ClassVar = {"traffic": 1.0}
    templates: ClassVar = {
        split: tuple(each.name for each in templates.TEMPLATES[split]) for split in templates.TEMPLATES
    }
    num_held_out = 1000
    action_space = Box(-1.0, 1.0, (2,))

    def __post_init__(self) -> None:
        """Refuse options that mean nothing."""
        vars(self).update(checked(self))
        vars(self).update(
            observation_space=space(self.sizes, self.observation == "flat"), max_episode_steps=self.scenario_length
        )

    @property
    def sizes(self) -> Sizes:
        """The numbers of things that are seen."""
        return Sizes(*(getattr(self, name) for name in Sizes._fields))

    def generator(self) -> "Driving":
        """Return the environment with the options alone that scenarios depend on."""
        return Driving(others=self.others, num_cars=self.num_cars, scenario_length=self.scenario_length, objects=1)

    def generate(self, key: jax.Array, split: Split, parameters: Parameters) -> Scenario:
        """Draw roads and cars, and record how an expert drives there."""
        of_roads, of_cars = jax.random.split(key)
        roads = templates.drawn(of_roads, split)
        motion, cars, crew = populated(of_cars, roads, self.num_cars, jnp.asarray(parameters["traffic"]))
        log = recorded(roads, motion, cars, crew, self.scenario_length, self.others == "log")
        return {"cars": cars, "crew": crew, "log": log, "roads": roads, "start": motion}

    def is_usable(self, scenario: Scenario) -> Array:
        """Return whether there is a route that an expert drives well and that leads somewhere."""
        return scenario["log"].is_clean & (scenario["log"].progress > LEAST_SPEED * DT * self.scenario_length)

    def defects(self, scenario: Scenario) -> dict[str, Array]:
        """Return what may be wrong with roads and cars that come from elsewhere."""
        return defects(*(scenario[name] for name in ("roads", "start", "cars", "crew")))

    def template(self, scenario: Scenario) -> Array:
        """Return which kind of road it is."""
        return scenario["roads"].template

    def begin(self, scenario: Scenario, key: jax.Array) -> tuple[State, Any]:
        """Start an episode, as the variant says."""
        roads, crew, cars, motion = (scenario[name] for name in ("roads", "crew", "cars", "start"))
        of_variant, of_driver = jax.random.split(key)
        adversary = nobody()
        if self.variant == "noisy":
            motion, cars = _shaken(of_variant, motion, cars)
        world = begun(roads, motion, cars)
        start = world.at.along[roads.route]
        if self.variant == "adversarial":
            adversary = adversary_of(of_variant, roads, cars, crew, start)
        own, others = _rows(roads, world)
        steps = max(PAST, self.past_steps)
        past = SeenBefore(jnp.tile(own, (steps, 1)), jnp.tile(others, (self.object_steps, 1, 1)))
        words = jax.random.key_data(of_driver)
        state = State(roads, crew, scenario["log"], world, past, metrics.nothing(), adversary, start, words)
        return state, self._seen(state, jnp.zeros(2))

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, Step]:
        """Drive for a tenth of a second."""
        roads, crew, world = state.roads, state.crew, state.world
        action = jnp.clip(self.chosen(state, action), -1.0, 1.0)
        log = state.log if self.others == "log" else None
        after, seen = advance(roads, crew, world, action, state.adversary, log)
        past = remembered(state.past, *_rows(roads, after))
        is_rough = metrics.is_rough(past.own[-PAST:])
        tally = self._counted(state, after, seen, is_rough)
        reward = reward_of(self.reward, seen, is_rough, roads.limit[roads.route])
        state = state._replace(world=after, past=past, tally=tally)
        info = metrics.figures(tally, state.log.progress)
        return state, Step(
            self._seen(state, action), reward, ended(self.termination_keys, seen), jnp.bool_(False), info
        )

    def scene(self, state: State) -> dict[str, jax.Array]:
        """Return poses, speeds and sizes of all cars, the lanes, the route and the lights."""
        roads, world = state.roads, state.world
        own, others = _rows(roads, world)
        size = jnp.where(is_on_map(world.cars, state.crew)[:, None], state.crew.size, 0.0)
        shown, every = lights(roads, world.step * DT), jnp.arange(len(roads.width))
        line, yaw = place(roads, every, jnp.minimum(roads.stop, LENGTH))
        color = jnp.where(roads.group < 0, 0, jnp.where(shown.is_red, 3, jnp.where(shown.is_yellow, 2, 1)))
        return {
            "car": jnp.append(own, jnp.array(SIZE)),
            "cars": jnp.concatenate([others, size], axis=-1),
            "lanes": jnp.where(roads.is_there[:, None, None], roads.points, jnp.nan),
            "width": roads.width[roads.route],
            "route": roads.points[roads.route],
            "lights": jnp.concatenate([line, yaw[:, None], color[:, None] * roads.is_there[:, None]], axis=-1),
        }

    def chosen(self, state: State, action: jax.Array) -> jax.Array:
        """Return the action of who drives: the one given, or that of a rule."""
        if self.driver == "agent":
            return action
        if self.driver == "expert":
            return state.log.action[jnp.minimum(state.world.step, len(state.log.action) - 1)]
        if self.driver == "random":
            key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.world.step)
            return jax.random.uniform(key, (2,), float, -1.0, 1.0)
        rule = drivers.idm if self.driver == "idm" else drivers.constant
        return rule(view(state.roads, state.crew, state.world))

    def _counted(self, state: State, after: World, seen: Happening, is_rough: jax.Array) -> metrics.Tally:
        track = state.log.track[jnp.minimum(after.step, len(state.log.track) - 1)]
        apart = jnp.sqrt(((after.motion.pose[:2] - track[:2]) ** 2).sum())
        progress = after.at.along[state.roads.route] - state.start
        return metrics.counted(state.tally, seen, is_rough, after.motion.speed, progress, apart)

    def _seen(self, state: State, action: jax.Array) -> Any:
        roads, world = state.roads, state.world
        along, aside = world.at.along[roads.route], world.at.aside[roads.route]
        there = is_on_map(world.cars, state.crew)
        groups = observed(self.sizes, roads, state.past, state.crew, there, Own(along, aside, action), world.step * DT)
        return join_groups(row(self.sizes), groups) if self.observation == "flat" else groups


def _rows(roads: Roads, world: World) -> tuple[jax.Array, jax.Array]:
    """Return pose and speed of the car, and of each of those around."""
    others = jnp.concatenate([poses(roads, world.cars), world.cars.speed[:, None]], axis=-1)
    return jnp.append(world.motion.pose, world.motion.speed), others


def _shaken(key: jax.Array, motion: Motion, cars: Cars) -> tuple[Motion, Cars]:
    """Move the start by up to a metre and five degrees, and change all speeds by up to a fifth."""
    keys = jax.random.split(key, 5)
    angle = jax.random.uniform(keys[0], (), float, 0.0, 2 * jnp.pi)
    far = jnp.sqrt(jax.random.uniform(keys[1], ()))
    turn = jnp.deg2rad(jax.random.uniform(keys[2], (), float, -5.0, 5.0))
    moved = motion.pose + jnp.stack([far * jnp.cos(angle), far * jnp.sin(angle), turn])
    speed = motion.speed * jax.random.uniform(keys[3], (), float, 0.8, 1.2)
    others = cars.speed * jax.random.uniform(keys[4], cars.speed.shape, float, 0.8, 1.2)
    return Motion(moved, speed), cars._replace(speed=others)
