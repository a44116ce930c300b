"""What resets cost in a compiled rollout: steps a second and memory. Prints one JSON object for each case.

    .venv/bin/python benchmarks/resets.py cartpole maze ant humanoid --repeats 5

The cases, each a rollout of PPO's untrained policy (two layers of 64), as a program of its own:

    cartpole    the native environment: a reset is a few random numbers
    maze        a toy whose reset carves a maze of 33x33 cells, walk by walk, and whose step moves one cell: a reset
                costs hundreds of steps, and a state is two thousand numbers
    ant         Brax's Ant, by `register_env` (pip install brax); --backend generalized, positional or spring
    humanoid    Brax's Humanoid, likewise

`steps_per_cpu_second` counts the time of all threads of the process instead, which other programs disturb least;
`bytes` is what XLA reserves for the program besides its arguments and results; `seconds_to_compile` is wall-clock.
Environments are as many as --num-envs says, steps as --num-steps; speeds are medians over repeats. With --repeats 0
the program is compiled, and not run.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ludus
from ludus.algorithms.hyperparameters import as_arrays
from ludus.rollout.runner import runner
from ludus.runtime.compilation import compiler_options, jit
from ludus.runtime.rng import stream
from ludus.spaces import Box, Discrete
from ludus.types import RolloutKeys, Spec, Step

SIDE = 33
MOVES = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
SHAPES = {"cartpole": (64, 128), "maze": (64, 128), "ant": (64, 20), "humanoid": (64, 20)}
"""Environments and steps of a rollout, where none are given."""


@dataclass(frozen=True)
class Maze(ludus.Environment):
    """Find the far corner of a maze that a random walk has carved."""

    observation_space = Box(-1.0, 1.0, (6,))
    action_space = Discrete(4)
    max_episode_steps = 400

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """Carve a maze: one visit of every odd cell in random order, with a passage to a neighbour each."""

        def carve(i: jax.Array, walls: jax.Array) -> jax.Array:
            key_cell, key_way = jax.random.split(jax.random.fold_in(key, i))
            cell = 2 * jax.random.randint(key_cell, (2,), 0, SIDE // 2) + 1
            way = jnp.asarray(MOVES)[jax.random.randint(key_way, (), 0, 4)]
            through = jnp.clip(cell + way, 1, SIDE - 2)
            return walls.at[cell[0], cell[1]].set(0.0).at[through[0], through[1]].set(0.0)

        walls = jax.lax.fori_loop(0, SIDE * SIDE // 2, carve, jnp.ones((SIDE, SIDE)))
        state = {"walls": walls, "at": jnp.array([1, 1])}
        return state, self._observe(state)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Step]:
        """Move by one cell, unless there is a wall; a few episodes end by accident."""
        to = state["at"] + jnp.asarray(MOVES)[action]
        is_wall = state["walls"][to[0], to[1]] > 0
        state = {**state, "at": jnp.where(is_wall, state["at"], to)}
        arrived = (state["at"] == SIDE - 2).all() | (jax.random.uniform(key) < 0.005)
        return state, Step(self._observe(state), -0.01, arrived)

    def _observe(self, state: Any) -> jax.Array:
        around = state["at"] + jnp.asarray(MOVES)
        return jnp.concatenate([state["walls"][around[:, 0], around[:, 1]], state["at"] / SIDE])


@dataclass(frozen=True)
class Brax(ludus.Environment):
    """A Brax environment below its wrappers."""

    name: str = "ant"
    backend: str = "generalized"
    env: Any = field(default=None, compare=False)

    max_episode_steps = 1000

    def __post_init__(self) -> None:
        """Make what it wraps, outside of any traced function."""
        from brax import envs

        env = envs.get_environment(self.name, backend=self.backend)
        spaces = {
            "observation_space": Box(-np.inf, np.inf, (env.observation_size,)),
            "action_space": Box(-1.0, 1.0, (env.action_size,)),
        }
        vars(self).update(spaces, env=env)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """Start an episode."""
        state = self.env.reset(key)
        return state, state.obs

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Step]:
        """Advance one step; `done` is an end of its own here, for the time limit is put around it."""
        state = self.env.step(state, action)
        return state, Step(state.obs, state.reward, state.done > 0)


def environment(case: str, backend: str, num_envs: int) -> Any:
    """Make the batch of a case."""
    if case == "cartpole":
        return ludus.make_env("jax:CartPole-v1", num_envs)
    ludus.register_env("maze", Maze)
    ludus.register_env("brax", Brax)
    return (
        ludus.make_env("maze", num_envs)
        if case == "maze"
        else ludus.make_env("brax", num_envs, name=case, backend=backend)
    )


def measured(case: str, given: argparse.Namespace) -> dict[str, Any]:
    """Compile and time the rollouts of one case."""
    num_envs, num_steps = given.num_envs or SHAPES[case][0], given.num_steps or SHAPES[case][1]
    env = environment(case, given.backend, num_envs)
    ppo = ludus.PPO(batch_size=num_envs * num_steps, minibatch_size=num_envs * num_steps)
    spec = Spec(env.observation_space, env.action_space, num_envs)
    policy = ppo.policy(ppo.init(stream(0, "init"), spec))
    options, run = compiler_options(1e12), runner(env)
    keys = RolloutKeys(*(stream(0, name) for name in RolloutKeys._fields))

    def rollout(policy: Any, carry: Any, number: jax.Array) -> Any:
        own = RolloutKeys(*(jax.random.fold_in(key, number) for key in keys))
        carry, made, stats = run.collect(as_arrays(ppo), env, policy, carry, own, num_steps)
        return carry, jax.tree.map(jnp.sum, made.steps.reward), stats.episodes

    carry = jit(run.begin, options, static=("env",))(as_arrays(ppo), env, policy, stream(0, "begin"))
    began = time.perf_counter()
    program = jax.jit(rollout, compiler_options=dict(options)).lower(policy, carry, np.int32(0)).compile()
    compiled = time.perf_counter() - began
    reserved = {"bytes": program.memory_analysis().temp_size_in_bytes, "seconds_to_compile": round(compiled, 1)}
    about = {"case": case, "num_envs": num_envs, "num_steps": num_steps, **reserved}
    if case in ("ant", "humanoid"):
        about["backend"] = given.backend
    if given.repeats == 0:
        return about
    seconds, busy, episodes = [], [], 0
    for number in range(given.repeats + 1):
        began, began_working = time.perf_counter(), time.process_time()
        carry, total, ended = program(policy, carry, np.int32(number))
        jax.block_until_ready((carry, total))
        seconds.append(time.perf_counter() - began)
        busy.append(time.process_time() - began_working)
        episodes += int(ended)
    speeds, of_work = ([num_envs * num_steps / each for each in row[1:]] for row in (seconds, busy))
    return {
        **about,
        "steps_per_second": float(f"{statistics.median(speeds):.4g}"),
        "each": [float(f"{speed:.4g}") for speed in speeds],
        "steps_per_cpu_second": float(f"{statistics.median(of_work):.4g}"),
        "episodes": episodes,
    }


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", choices=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--num-steps", type=int)
    parser.add_argument("--backend", default="generalized")
    given = parser.parse_args()
    for case in given.cases:
        print(json.dumps(measured(case, given)), flush=True)


if __name__ == "__main__":
    main()
