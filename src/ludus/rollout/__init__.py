"""Rollouts: one signature, two ways to fill it. `compiled` for JAX environments, `host` for all others.

Both modules have the same names:

    begin(algorithm, env, policy, key)                                -> carry
    start(algorithm, env, policy, key)                                -> carry, as a program of its own
    collect(algorithm, env, policy, carry, keys, num_steps, ...)      -> carry, Rollout, EpisodeStats
    play(algorithm, env, policy, key, match)                          -> returns, lengths, info of episodes, cuts
    watch(look, parts, memory, env, key, index, most, enough)         -> one of these episodes, with all its steps
    IS_PURE                                                           -> whether a thread may do so beside training
    compile_update(update, options, donate)                           -> update, compiled if it runs on its own
    repeat(body, plan, capacity, options)                             -> a loop that runs `body` many times
"""

from types import ModuleType
from typing import Any

from ludus.envs.vector import VectorEnv
from ludus.rollout import compiled, host


def runner(env: Any) -> ModuleType:
    """Return the module that runs `env`: the one place in the package that asks which kind it is."""
    return compiled if isinstance(env, VectorEnv) else host
