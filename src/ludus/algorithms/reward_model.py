"""A reward that was learnt, as one file that works on its own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.learned_reward import LearnedReward
from ludus.algorithms.policy_file import Learned, load, save
from ludus.algorithms.reward_source import RewardSource
from ludus.algorithms.reward_state import RewardState
from ludus.algorithms.segments import Segments
from ludus.networks.reward_network import Judged
from ludus.types import LudusError, Spec, Tree, split_mask

FORMAT = "ludus-reward-1"
FINAL = Path("policies") / "final_reward.safetensors"


class RewardModel(Learned):
    """A reward that was learnt and works on its own: call it with a step, or a batch of them."""

    def __call__(self, obs: Tree, action: Tree, next_obs: Tree, memory: Tree = None) -> Any:
        """Return the normalised reward; with a memory, `(reward, memory)`.

        Args:
            obs: one observation, or a batch of them.
            action: as the environment takes it.
            next_obs: the true successors of the observations.
            memory: of a model with a memory: `model.initial_memory(n)` at first, then what it returned.
        """
        (seen, single), (after, _) = (self.as_batch(split_mask(x)[0]) for x in (obs, next_obs))
        action, _ = self._arrays(self.spec.action_space, action, "an action")
        start = self.initial_memory(len(jax.tree.leaves(seen)[0])) if memory is None else memory
        new_memory, reward = _rewards(self.state, start, Judged(seen, action, after))
        reward = np.asarray(reward)[0] if single else np.asarray(reward)
        return reward if memory is None else (reward, new_memory)

    def initial_memory(self, n: int = 1) -> Any:
        """Memory at the start of `n` episodes; `()` for a network without one."""
        return self.state.initial_memory(n)

    def of_segments(self, segments: Segments) -> np.ndarray:
        """Return the normalised rewards of the steps of segments, `[n, L]`."""
        return np.asarray(_segment_rewards(self.state, segments))


@jax.jit
def _rewards(state: RewardState, memory: Tree, steps: Judged) -> tuple[Tree, jax.Array]:
    one = jax.tree.map(lambda x: x[None], steps)
    ended = jnp.zeros((1, len(jax.tree.leaves(steps)[0])), bool)
    memory, said = state.judge(memory, one, ended)
    return memory, state.normalized(said).mean(axis=0)[0]


@jax.jit
def _segment_rewards(state: RewardState, segments: Segments) -> jax.Array:
    return state.normalized(state.of_segments(segments)).mean(axis=0)


def save_reward_model(model: RewardModel, path: str | Path) -> None:
    """Write a reward model as one safetensors file: a format that holds numbers and text, and can execute nothing."""
    save(model, FORMAT, Path(path))


def load_reward_model(path: str | Path, source: Algorithm | None = None) -> RewardModel:
    """Load the final reward model of a run folder, or a reward model's file.

    Args:
        path: a run folder or a file.
        source: the reward it was learnt with; needed only if that held your own network.
    """
    path = Path(path)
    return load(RewardModel, FORMAT, path / FINAL if path.is_dir() else path, source, lambda source, state: state)


def described(source: RewardSource, state: RewardState) -> Any:
    """Return a source that describes a model as it is: one that was given may be unlike what the source would make."""
    build: Any = state.network.build
    seen = state.observations is not None
    return replace(
        source, network=build.network, inputs=build.inputs, members=state.num_members, normalize_observations=seen
    )


def check_fits(model: RewardModel, spec: Spec, path: str) -> None:
    """Refuse a model that was made for other spaces."""
    for kind in ("observation_space", "action_space"):
        theirs, ours = getattr(model.spec, kind), getattr(spec, kind)
        if theirs != ours:
            name = kind.replace("_", " ")
            raise LudusError(f"reward.model={path}: its {name} is {str(theirs)[:200]}, and not {str(ours)[:200]}")


def reward_model_of(
    algorithm: Algorithm, learner: Tree, spec: Spec, env_id: str, copied: Callable[[Tree], Tree]
) -> RewardModel | None:
    """Return a copy of the reward model in a learner's state; None if there is none, or it was given away."""
    if not isinstance(algorithm, LearnedReward):
        return None
    state = learner.fitted.model
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
        return None
    return RewardModel(described(algorithm.reward, state), copied(state), spec, env_id)
