"""Judges: reward models as a simulator can use them, one state after the other, with whatever they must remember.

Their parameters are part of the programs that they are compiled into: they do not learn while these run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from ludus.networks.memory import MemoryUnit
from ludus.networks.sequence_networks import SequenceNetwork
from ludus.networks.window import RecentSteps, WindowMemory
from ludus.types import LudusError, Tree

SequenceReward = SequenceNetwork | Callable[[jax.Array, jax.Array], jax.Array]
"""A transformer, or any function of sequences `[T, B, input_dim]` and their padding `[T, B]` to rewards `[B, 1]`."""


@dataclass(frozen=True, eq=False)
class TransformerJudge:
    """A transformer that remembers keys and values, or a window, as a policy does."""

    unit: MemoryUnit
    head: Callable[[jax.Array], jax.Array]

    def start(self) -> Tree:
        """Return an empty memory."""
        return self.unit.initial(1)

    def judge(self, memory: Tree, obs: jax.Array) -> tuple[Tree, jax.Array]:
        """Return the new memory and the reward."""
        memory, features = self.unit.step(memory, obs[None])
        return memory, self.head(features)[0, 0]


@dataclass(frozen=True, eq=False)
class WindowJudge:
    """Any function of sequences: it is shown the latest states at every step."""

    model: Callable[[jax.Array, jax.Array], jax.Array]
    sequence_length: int
    input_dim: int

    def start(self) -> RecentSteps:
        """Return a window in which there is nothing."""
        return RecentSteps(jnp.zeros((self.sequence_length, self.input_dim)), jnp.int32(0))

    def judge(self, memory: RecentSteps, obs: jax.Array) -> tuple[RecentSteps, jax.Array]:
        """Return the new window and the reward."""
        rows = jnp.concatenate([memory.rows[1:], obs[None]])
        count = jnp.minimum(memory.count + 1, self.sequence_length)
        padding = jnp.arange(self.sequence_length) < self.sequence_length - count
        return RecentSteps(rows, count), jnp.asarray(self.model(rows[:, None], padding[:, None]))[0, 0]


def judge_of(
    model: SequenceReward, sequence_length: int, input_dim: int, longest: int
) -> TransformerJudge | WindowJudge:
    """Return a reward model, as it is now, as a judge of episodes of `longest` steps at most."""
    if isinstance(model, SequenceNetwork):
        if (model.input_dim, model.outputs) != (input_dim, 1):
            raise LudusError(
                f"reward_model: takes states of length {model.input_dim} and has {model.outputs} outputs; the task's "
                f"states have length {input_dim}, and one reward is wanted"
            )
        own = nnx.clone(model).seeing(sequence_length)
        # The state that an episode starts in is looked at too.
        return TransformerJudge(WindowMemory(own.memory) if longest >= sequence_length else own.memory, own.head)
    shapes = jnp.zeros((sequence_length, 1, input_dim)), jnp.zeros((sequence_length, 1), bool)
    try:
        found = jax.eval_shape(model, *shapes).shape
    except Exception as error:  # whatever the user's function raises
        words = " ".join(str(error).split())
        raise LudusError(f"reward_model: raised {type(error).__name__}: {words} on {shapes[0].shape}") from error
    if found != (1, 1):
        raise LudusError(f"reward_model: must return rewards (B, 1) for sequences (T, B, {input_dim}), got {found}")
    return WindowJudge(model, sequence_length, input_dim)
