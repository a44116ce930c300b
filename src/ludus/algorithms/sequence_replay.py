"""SAC's samples: transitions out of a replay, or sequences of them with a memory.

The ring holds an environment's steps at equal distances: one step of every environment, then the next of every one. So
a sequence is a transition and those that lie so many slots further on, and storing it takes no room of its own. Nor is
the memory stored that acting had: a sequence begins with a blank memory, which its first steps fill without
being learnt from (the burn-in of Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement
learning"). Where what follows is not the successor, an episode has ended, and the memory is cleared.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.replay import Drawn, Replay, empty_replay, gather, insert, is_whole, sample
from ludus.networks.action_scaling import action_size
from ludus.networks.soft_actor_critic import Past, SoftNetworks
from ludus.runtime import placement
from ludus.spaces import map_leaves
from ludus.types import Spec, Transition, Tree

if TYPE_CHECKING:
    from ludus.algorithms.sac import SAC


class Kept(NamedTuple):
    """The arrays that are stored as an action."""

    action: Any
    valid: Any
    """False for padding, which is stored too, so that distances stay equal, but is never learnt from."""


def empty(sac: "SAC", spec: Spec, networks: SoftNetworks) -> Replay:
    """Return the replay that SAC begins with."""
    obs = map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec.observation_space)
    action = np.zeros(action_size(spec.action_space), np.float32)
    kept = Kept(action, np.bool_(False)) if networks.has_memory else action
    return empty_replay(sac.replay_size, spec.num_envs, sac.unroll_length * spec.num_envs, obs, kept)


def store(networks: SoftNetworks, replay: Replay, steps: Transition, action: Tree) -> Replay:
    """Store a rollout `[T, B]`; with a memory also its invalid rows, each of which is an episode of its own."""
    if not networks.has_memory:
        return insert(replay, steps, action)
    valid = jnp.ones_like(steps.terminated) if steps.valid is None else steps.valid
    return insert(replay, steps._replace(terminated=steps.terminated | ~valid, valid=None), Kept(action, valid))


def draw(sac: "SAC", networks: SoftNetworks, replay: Replay, key: jax.Array, see: Callable[[Tree], Tree]) -> Drawn:
    """Draw a batch: transitions, or sequences of them with a memory. `see` is what is done to observations first."""
    if networks.has_memory:
        cut = Cut(sac.batch_size // sac.segment_length, sac.burn_in, sac.segment_length)
        return placement.split(sample_sequences(replay, key, cut, see), axis=1)
    drawn = placement.split(sample(replay, key, sac.batch_size))
    return drawn._replace(obs=see(drawn.obs), next_obs=see(drawn.next_obs))


class Cut(NamedTuple):
    """The kind of sequences that are drawn."""

    count: int
    burn_in: int
    """Steps at the beginning of each that only fill the memory."""
    length: int
    """Steps after them, which are learnt from."""


def sample_sequences(replay: Replay, key: jax.Array, cut: Cut, see: Callable[[Tree], Tree]) -> Drawn:
    """Draw sequences, time first: `[length, n]`, with a `Past` of each in place of observations and successors.

    They begin at any step of which the whole sequence is stored. While there is none, missing steps weigh nothing;
    neither do padding and transitions whose observation is gone.
    """
    ends, apart, steps = replay.ends, len(replay.ends.open_frame), cut.burn_in + cut.length
    oldest = jnp.maximum(ends.size, 1)
    first = jax.random.randint(key, (cut.count,), jnp.minimum((steps - 1) * apart + 1, oldest), oldest + 1)
    age = first - apart * jnp.arange(steps)[:, None]  # [steps, n]
    stored = gather(replay.transitions, (ends.total - age) % replay.num_slots)
    obs, next_obs = (see(gather(replay.frames, n % replay.num_frames)) for n in (stored.frame, stored.next_frame))
    goes_on = stored.next_frame[:-1] == stored.frame[1:]
    ended = jnp.concatenate([~goes_on, jnp.zeros_like(goes_on[:1])])
    weight = is_whole(replay, stored.frame) & (age >= 1) & stored.action.valid
    before, (obs, next_obs, ended, stored, weight) = _split(cut.burn_in, (obs, next_obs, ended, stored, weight))
    past = Past((before[0], before[2]) if cut.burn_in else None, obs, None, ended)
    return Drawn(
        past, stored.action.action, stored.reward, stored.terminated, past._replace(next_obs=next_obs),
        weight.astype(jnp.float32),
    )  # fmt: skip


def _split(at: int, tree: Tree) -> tuple[Any, Any]:
    return jax.tree.map(lambda x: x[:at], tree), jax.tree.map(lambda x: x[at:], tree)
