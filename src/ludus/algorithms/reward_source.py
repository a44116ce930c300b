"""The sources that a reward is learnt from: what all of them have, and how a model is fitted.

A source is a frozen dataclass of hyperparameters with a few pure functions, as an algorithm is. Its data are arrays in
the learner's state, so that checkpoints hold them. `PreferenceReward`, `RegressionReward` and `DemonstrationReward`
are the sources that there are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.hyperparameters import check_hyperparameters, static, traced
from ludus.algorithms.optimizer import Optimizer
from ludus.algorithms.reward_state import RewardState, blank_reward, measured
from ludus.algorithms.segments import Pool, blank_segments, example
from ludus.networks.builders import MLP
from ludus.networks.network import Leaves
from ludus.networks.reward_network import INPUTS
from ludus.networks.soft_actor_critic import TorsoConfig
from ludus.types import Array, LudusError, Spec, Tree


class Fitted(NamedTuple):
    """A model and its optimiser."""

    model: RewardState
    optimizer: Tree


class Lesson(NamedTuple):
    """All that a source can learn from in one iteration."""

    pool: Pool
    new: Any
    """The segments of this iteration, and which of them there are."""
    number: Array
    """The iteration's number, from 0."""
    progress: Array
    """The share of the budget that is spent."""


class Taught(NamedTuple):
    """The result of a lesson."""

    fitted: Fitted
    data: Tree
    is_new: jax.Array
    """Whether the model was fitted."""
    metrics: dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class RewardSource:
    """Hyperparameters that all sources have."""

    is_centred: ClassVar[bool] = False
    """Whether a reward has mean 0: so where nothing tells the worth of a step as such."""

    learning_rate: float = traced(1e-3, "Adam's step size for the reward model", 0.0)
    weight_decay: float = traced(1e-4, "weight of half the squared norm of each member's parameters", 0.0)
    disagreement_coef: float = traced(0.0, "how many deviations between the members are subtracted as a penalty", 0.0)
    alarm: float = traced(4.0, "standard errors of a trend from which on the alarm heeds it", 0.0)
    members: int = static(3, "networks of the ensemble", 1)
    segment_length: int = static(25, "steps of the segments that are learnt from", 1)
    pool_size: int = static(256, "segments of the latest iterations to choose from", 8)
    batch_size: int = static(32, "segments, or pairs of them, in each gradient step of each member", 1)
    fit_steps: int = static(100, "gradient steps of each fit", 1)
    held_out: int = static(5, "of so many labels or segments one is never learnt from, but tells the accuracy", 2)
    inputs: tuple[str, ...] = static(INPUTS, "what a reward depends on: obs, action, next_obs, or some of them")
    normalize_observations: bool = static(True, "shift and scale what the reward model sees by running statistics")
    model: str | None = static(None, "a reward model's file or run folder, which is used as it is; null: learn one")
    network: TorsoConfig = static(MLP((64, 64), "tanh"), "the reward's network: mlp, gru, transformer, or your own")

    def __post_init__(self) -> None:
        """Check what can be checked without an environment."""
        check_hyperparameters(self, "reward")
        inputs = tuple(self.inputs)
        if not inputs or len(set(inputs)) < len(inputs) or not set(inputs) <= set(INPUTS):
            raise LudusError(f"reward.inputs={list(inputs)}: must be some of {', '.join(INPUTS)}, each once")
        object.__setattr__(self, "inputs", inputs)
        self.check()

    def check(self) -> None:
        """Refuse hyperparameters of one's own that contradict each other."""

    def validate(self, spec: Spec, rollout_length: int) -> None:
        """Refuse what cannot work, before anything is compiled."""
        if not hasattr(self.network, "torso"):
            name = getattr(self.network, "__name__", type(self.network).__name__)
            raise LudusError(f"reward.network={name}: must have torso(part, inputs, generator), as mlp has")
        if rollout_length < self.segment_length:
            raise LudusError(
                f"reward.segment_length={self.segment_length}: must be at most the steps of a rollout in each "
                f"environment, {rollout_length}"
            )
        if self.model is not None:
            self._given(self.model, spec)

    def init(self, key: jax.Array, spec: Spec) -> Fitted:
        """Return a model that nothing was learnt from, or the one that was given, and its optimiser."""
        model = blank_reward(self, spec, key) if self.model is None else self._given(self.model, spec)
        return Fitted(model, self.optimizer.init(model.parameters))

    def _given(self, path: str, spec: Spec) -> RewardState:
        """Return the model in a file."""
        from ludus.algorithms.reward_model import check_fits, load_reward_model

        model = load_reward_model(path)
        check_fits(model, spec, path)
        return model.state

    def blank(self, spec: Spec) -> RewardState:
        """Return a model of the right shapes."""
        return blank_reward(self, spec, jax.random.key(0))

    def for_acting(self) -> "RewardSource":
        """Return the source without files: a saved model describes it."""
        return replace(self, model=None)

    def pool(self, spec: Spec) -> Pool:
        """Return an empty pool."""
        obs, action = example(spec.observation_space), example(spec.action_space)
        segments = blank_segments((self.pool_size,), self.segment_length, obs, action)
        return Pool(segments, jax.device_put(np.int32(0)))

    def data(self, spec: Spec) -> Tree:
        """Return what is learnt from before the first lesson; arrays of fixed shapes."""
        return ()

    def learn(self, fitted: Fitted, data: Tree, lesson: Lesson, key: jax.Array) -> Taught:
        """Gather what is to be learnt from, and fit the model if there is anything new."""
        raise NotImplementedError

    def agreement(self, model: RewardState, data: Tree) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the model's accuracy on older and on newer held-out labels, and the number of each; NaN for none."""
        nothing = jnp.asarray(jnp.nan)
        return nothing, nothing, jnp.asarray(0.0)

    @property
    def optimizer(self) -> Optimizer:
        """The optimiser of all members together: Adam has no use for their number."""
        return Optimizer(self.learning_rate)

    def descend(
        self,
        fitted: Fitted,
        loss: Callable[[Leaves, Tree], jax.Array],
        draw: Callable[[jax.Array], Tree],
        key: jax.Array,
    ) -> tuple[Fitted, jax.Array]:
        """Make the gradient steps of one fit; returns the mean loss too.

        `draw` returns a batch for every member `[members, ...]`; `loss` is of one member and its batch.
        """

        def total(parameters: Leaves, batch: Tree) -> jax.Array:
            each = jax.vmap(loss)(parameters, batch).sum()
            return each + 0.5 * self.weight_decay * sum(jnp.sum(jnp.square(x)) for x in parameters)

        def step(i: jax.Array, carry: tuple[Leaves, Tree, jax.Array]) -> tuple[Leaves, Tree, jax.Array]:
            parameters, state, losses = carry
            value, gradient = jax.value_and_grad(total)(parameters, draw(jax.random.fold_in(key, i)))
            change, state = self.optimizer.update(gradient, state, parameters)
            return jax.tree.map(jnp.add, parameters, change), state, losses + value

        start = fitted.model.parameters, fitted.optimizer, jnp.zeros(())
        parameters, state, losses = jax.lax.fori_loop(0, self.fit_steps, step, start)
        made = Fitted(replace(fitted.model, parameters=parameters), state)
        return made, losses / (self.fit_steps * self.members)

    def measured(self, model: RewardState, pool: Pool) -> RewardState:
        """Return a model that is normalised over the pool."""
        is_filled, _ = pool.order()
        said = model.of_segments(pool.segments)
        weight = jnp.broadcast_to(is_filled[:, None], said.shape[1:]).astype(jnp.float32)
        return measured(model, said, weight, self.is_centred)
