"""Monte-Carlo rollouts: branches that the policy plays from given states, of which nothing comes back.

They tell what a state is worth: the mean of their discounted returns. The environments and the run that they branch off
from stay as they are. Branch `b` of state `i` depends on the key and on these two numbers alone: all branches at once,
or one after the other, are the same.
"""

from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from ludus.envs.batch import BatchState, Draw, JaxEnv
from ludus.rollout.acting import Actor
from ludus.runtime.packing import choose_rows
from ludus.runtime.rng import spread
from ludus.types import Array, Branching, LudusError, Mode, Transition, Tree

MOST_LANES = 4096
"""So many branches are played side by side at most; more are played one part after the other."""
NEVER = 1 << 30
"""A depth that no episode reaches."""


class Valuing(Actor, Protocol):
    """The methods that branches use of an algorithm with a critic."""

    values_actions: ClassVar[bool]

    def value(self, critic: Tree, memory: Tree, obs: Tree, action: Tree) -> tuple[Tree, jax.Array]:
        """Value a batch of observations in units of the environment's rewards."""
        ...


class Origin(NamedTuple):
    """The states `[N, ...]` that branches begin in."""

    env: Any
    """Of JAX environments a `BatchState`; of others a snapshot and what they show there."""
    memory: Tree = ()
    """The policy's."""
    critic_memory: Tree = ()
    wanted: Array = None
    """Where it is False no branches are played, and what comes back means nothing; None: they are from all states."""


class FirstBranch(NamedTuple):
    """The number of the first branch and of the first state, where others are played elsewhere."""

    branch: Array = 0
    state: Array = 0


class BranchLanes(NamedTuple):
    """Branches side by side `[branches * N]`."""

    env: BatchState
    memory: Tree
    critic_memory: Tree
    active: jax.Array
    """Which have not ended."""


class BranchSums(NamedTuple):
    """The sums that branches have gathered so far."""

    t: jax.Array
    lanes: BranchLanes
    total: jax.Array
    """Discounted rewards."""
    weight: jax.Array
    """The discount of what comes next."""
    shown: Tree
    """What followed the last step."""
    terminated: jax.Array


def here(env: JaxEnv, carry: Any) -> Origin:
    """Return where the environments of a rollout's carry are."""
    return Origin(carry.env, carry.memory)


def roll_out(  # noqa: PLR0913  each part of a rollout is given by itself
    algorithm: Actor,
    env: JaxEnv,
    policy: Tree,
    origin: Origin,
    key: jax.Array,
    depth: int,
    branches: int = 1,
    *,
    mode: Mode = "sample",
    first: FirstBranch = FirstBranch(),  # noqa: B008  a NamedTuple cannot change
) -> Transition:
    """Play `branches` rollouts from each state, and return their steps `[depth, branches, N, ...]`.

    A branch ends with its episode: rows after that are not `valid`. `extras` is what `act` tells of an action, its
    log-probability among it.
    """
    count = len(origin.env.episode_length)
    step_key, noise_key = jax.random.split(key)

    def step(lanes: BranchLanes, t: jax.Array) -> tuple[BranchLanes, Transition]:
        keys = (keys_of(each, t, branches, count, first) for each in (step_key, noise_key))
        return advanced(algorithm, env, policy, lanes, *keys, mode)

    steps = jax.lax.scan(step, tiled(origin, branches), jnp.arange(depth))[1]
    return jax.tree.map(lambda x: x.reshape(depth, branches, count, *x.shape[2:]), steps)


def returns(  # noqa: PLR0913  each part of a rollout is given by itself
    algorithm: Valuing,
    env: JaxEnv,
    policy: Tree,
    critic: Tree,
    origin: Origin,
    key: jax.Array,
    branching: Branching,
    *,
    mode: Mode = "sample",
    first: FirstBranch = FirstBranch(),  # noqa: B008
    begin_with: Tree = None,
) -> jax.Array:
    """Return the discounted return of each branch `[branches, N]`; no step of theirs is kept.

    Their first actions are those of `begin_with` `[N, ...]`, if it is given, and all others the policy's.

    What comes after the depth, or after an episode that was truncated, is what the critic says of the last
    observation, and nothing where there is no critic; after a termination there is nothing.
    """
    branches, count = branching.branches, len(origin.env.episode_length)
    depth = NEVER if branching.depth is None else branching.depth
    step_key, noise_key = jax.random.split(key)

    def running(sums: BranchSums) -> jax.Array:
        return sums.lanes.active.any() & (sums.t < depth)

    def step(sums: BranchSums) -> BranchSums:
        keys = (keys_of(each, sums.t, branches, count, first) for each in (step_key, noise_key))
        active, memory = sums.lanes.active, sums.lanes.critic_memory
        if jax.tree.leaves(memory):
            after = _value(algorithm, policy, critic, sums.lanes, sums.lanes.env.obs)[0]
            memory = choose_rows(active, after, memory)
        given = None if begin_with is None else (sums.t == 0, tile(begin_with, branches))
        lanes, row = advanced(algorithm, env, policy, sums.lanes, *keys, mode, given=given)
        return BranchSums(
            sums.t + 1,
            lanes._replace(critic_memory=memory),
            sums.total + jnp.where(active, sums.weight * row.reward, 0.0),
            jnp.where(active, sums.weight * branching.gamma, sums.weight),
            choose_rows(active, row.next_obs, sums.shown),
            sums.terminated | (active & row.terminated),
        )

    lanes = tiled(origin, branches)
    nothing = jnp.zeros(branches * count)
    begun = BranchSums(jnp.int32(0), lanes, nothing, nothing + 1.0, lanes.env.obs, nothing > 0)
    done = jax.lax.while_loop(running, step, begun)
    total = done.total
    if critic is not None:
        value = _value(algorithm, policy, critic, done.lanes, done.shown)[1]
        total = total + jnp.where(done.terminated, 0.0, done.weight * value)
    return total.reshape(branches, count)


def returns_in_parts(
    algorithm: Valuing, env: JaxEnv, policy: Tree, critic: Tree, origin: Origin, key: jax.Array, branching: Branching
) -> jax.Array:
    """Return what `returns` does, for more states than can be played at once: `[branches, N]`."""
    count = len(origin.env.episode_length)
    size = max(1, min(count, MOST_LANES // branching.branches))
    parts = -(-count // size)
    missing = parts * size - count

    def cut(x: jax.Array) -> jax.Array:
        # The last part is filled up with states that are there already: their branches are played and left out.
        whole = jnp.concatenate([x, x[:missing]]) if missing else x
        return whole.reshape(parts, size, *x.shape[1:])

    def part(inputs: tuple[jax.Array, Origin]) -> jax.Array:
        number, states = inputs
        first = FirstBranch(0, number * size)
        return returns(algorithm, env, policy, critic, states, key, branching, first=first)

    each = jax.lax.map(
        part, (jnp.arange(parts, dtype=jnp.uint32), jax.tree.map(cut, origin))
    )  # [parts, branches, size]
    return each.swapaxes(0, 1).reshape(branching.branches, -1)[:, :count]


def advanced(
    algorithm: Actor,
    env: JaxEnv,
    policy: Tree,
    lanes: BranchLanes,
    step_keys: jax.Array,
    noise_keys: jax.Array,
    mode: Mode,
    *,
    given: tuple[jax.Array, Tree] | None = None,
) -> tuple[BranchLanes, Transition]:
    """Take one step in every lane; one that has ended stays where it is.

    `given` is whether other actions are to be taken than the policy's, and which.
    """
    noise = None if mode == "greedy" else jax.vmap(lambda key: algorithm.noise(policy, key, ()))(noise_keys)
    memory, action, extras = algorithm.act(policy, lanes.memory, lanes.env.obs, noise, mode)
    if given is not None:
        action = jax.tree.map(partial(jnp.where, given[0]), given[1], action)
    after, row = stepped(env, lanes, action, step_keys)
    return after._replace(memory=choose_rows(lanes.active, memory, lanes.memory)), row._replace(extras=extras)


def stepped(env: JaxEnv, lanes: BranchLanes, action: Tree, keys: jax.Array) -> tuple[BranchLanes, Transition]:
    """Take given actions in every lane."""
    wide = sized(env, len(lanes.active))
    state, outcome = wide.step(lanes.env, action, Draw(keys, None))  # nothing follows on an end
    row = Transition(
        lanes.env.obs, action, outcome.reward, outcome.terminated, outcome.truncated, outcome.obs, (), lanes.active
    )
    # An ended copy would begin to count anew: it stays as it was, so that it is never stepped beyond its end.
    going = lanes.active & ~(outcome.terminated | outcome.truncated)
    return BranchLanes(choose_rows(going, state, lanes.env), lanes.memory, lanes.critic_memory, going), row


def sized(env: JaxEnv, num_envs: int) -> JaxEnv:
    """Return a batch of another size whose states are of the same kind; `remake` is for evaluation's scenarios."""
    return JaxEnv(env.env, num_envs, env.id, env.max_episode_steps, env.options, env.stored, env.source)


def tiled(origin: Origin, branches: int) -> BranchLanes:
    """Return lanes of which number `b * N + i` is branch `b` of state `i`."""
    env, memory, critic_memory, wanted = tile(tuple(origin), branches)
    return BranchLanes(
        env, memory, critic_memory, jnp.ones(len(env.episode_length), bool) if wanted is None else wanted
    )


def tile(tree: Tree, branches: int) -> Any:
    """Repeat arrays `[N, ...]` for each branch: `[branches * N, ...]`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (branches, *x.shape)).reshape(-1, *x.shape[1:]), tree)


def keys_of(key: jax.Array, t: Array, branches: int, count: int, first: FirstBranch) -> jax.Array:
    """Return a key for each lane at step `t`: it depends on the numbers of step, branch and state alone."""
    numbers = jnp.arange(branches, dtype=jnp.uint32) + first.branch
    each = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, t), numbers)
    return jax.vmap(lambda key: spread(key, (count,), first.state))(each).reshape(-1)


def _value(algorithm: Valuing, policy: Tree, critic: Tree, lanes: BranchLanes, obs: Tree) -> tuple[Tree, jax.Array]:
    """Return the critic's new memory and its values; one that judges actions judges the greedy ones."""
    return valued(algorithm, policy, critic, (lanes.memory, lanes.critic_memory), obs)


def valued(algorithm: Valuing, policy: Tree, critic: Tree, memories: tuple[Tree, Tree], obs: Tree) -> Any:
    """Return a critic's new memory, and what it says of observations."""
    memory, critic_memory = memories
    action = algorithm.act(policy, memory, obs, None, "greedy")[1] if algorithm.values_actions else None
    return algorithm.value(critic, critic_memory, obs, action)


def check_branching(env: JaxEnv, branching: Branching) -> None:
    """Refuse branches that might never end."""
    if branching.depth is None and env.max_episode_steps is None:
        raise LudusError(
            f"algorithm.branch_depth=null: {env.id} names no longest episode; give a number of steps, or "
            "env_options.max_episode_steps"
        )
