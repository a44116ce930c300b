"""The protocol of an algorithm: hyperparameters, and a few pure functions of what was learnt.

    state                   = algorithm.init(key, spec)
    policy                  = algorithm.policy(state)
    memory                  = algorithm.initial_memory(policy, n)
    noise                   = algorithm.noise(policy, key, shape)
    memory, action, extras  = algorithm.act(policy, memory, obs, noise, mode)
    update                  = algorithm.update(state, rollout, key)

Everything but `init` may be called inside `jax.jit`. The algorithm itself is a pytree: hyperparameters made with
`traced` are leaves, so changing one compiles nothing; those made with `static` shape the program.

An algorithm of your own is a frozen dataclass that inherits from `Algorithm`, and so has the functions it does not
write itself; or any other object that has all of them. `ludus.algorithms.ppo.PPO` is the implementation to read.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import jax

from ludus.algorithms.hyperparameters import check_hyperparameters
from ludus.runtime.packing import MetricVector
from ludus.runtime.rng import spread
from ludus.types import Array, Branching, LudusError, Mode, Rollout, Spec, Tree


class Update(NamedTuple):
    """The result of learning from one rollout."""

    state: Tree
    """The state after it; where there is a fault, the one that was given."""
    metrics: dict[str, Array]
    """Float scalars by the names under which they are journalled."""
    updates: Array | int = 1
    """Gradient steps that were made."""
    fault: Array | None = None
    """An index into `finite_checks.FAULTS`, 0 if all is well; None lets the training loop look for NaN by itself."""
    gradient: Tree = ()
    """The gradient of the last step before any clipping, for `diagnostics` alone; NaN if no step was made."""


class Algorithm(Protocol):
    """The protocol of an algorithm. Only `init`, `policy`, `act`, `update` and `rollout_length` must be written."""

    values_actions: ClassVar[bool] = False
    """Whether its critic judges an observation together with an action."""
    is_on_policy: ClassVar[bool] = True
    """Whether it learns from each rollout alone, so that rollouts may be of different lengths."""

    def __post_init__(self) -> None:
        """Check the fields of a dataclass, and read schedules that are given as text or functions."""
        if dataclasses.is_dataclass(self):
            check_hyperparameters(self)

    def init(self, key: jax.Array, spec: Spec) -> Tree:
        """Return the learner's whole state: networks, optimiser, normalisers, replay."""
        ...

    def policy(self, state: Tree) -> Tree:
        """Return the part of the state that acting needs, and no more."""
        ...

    def act(self, policy: Tree, memory: Tree, obs: Tree, noise: Tree, mode: Mode) -> tuple[Tree, Tree, Tree]:
        """Choose actions for a batch `[n, ...]`: new memory, actions for the environment, extras for `update`.

        `noise` is one row `[n, ...]` of what `noise` drew; in greedy mode it is None. To sample is to explore without
        anything that only training does, such as SAC's warm-up.
        """
        ...

    def update(self, state: Tree, rollout: Rollout, key: jax.Array) -> Update:
        """Learn from one rollout."""
        ...

    def rollout_length(self, num_envs: int) -> int:
        """Return how many steps each environment contributes to one update."""
        ...

    def validate(self, spec: Spec) -> None:
        """Raise LudusError if this algorithm cannot learn in such an environment; nothing has been compiled yet."""

    def check_devices(self, spec: Spec, count: int) -> None:
        """Raise LudusError if so many devices cannot share its minibatches evenly; they do share the environments."""
        return

    def initial_memory(self, policy: Tree, n: int) -> Tree:
        """Return a policy's or critic's memory at the start of `n` episodes; `()` if it has none."""
        return ()

    def noise(self, policy: Tree, key: jax.Array, shape: tuple[int, ...]) -> Tree:
        """Draw what exploration needs for `shape` actions: arrays `[*shape, ...]`, for a whole rollout at once.

        Without another choice that is a key for each action.
        """
        return spread(key, shape)

    def critic(self, state: Tree) -> Tree | None:
        """Return the part of the state that valuing needs; None for an algorithm without a critic."""
        return None

    def value(self, critic: Tree, memory: Tree, obs: Tree, action: Tree) -> tuple[Tree, jax.Array]:
        """Value a batch `[n, ...]` in units of the environment's rewards; `action` is None unless `values_actions`."""
        raise NotImplementedError

    def branching(self) -> Branching | None:
        """Return the branches by which the states of its rollouts are to be valued; None if it has no use for them."""
        return None

    def critic_memory(self, state: Tree, memory: Tree) -> Tree:
        """Return the critic's memory before the next step, where the policy's is `memory`; `()` if it has none."""
        return ()

    def distribution(self, policy: Tree, memory: Tree, obs: Tree) -> tuple[Tree, Any]:
        """Return the new memory and the distribution that `act` chooses from; None if it is not known."""
        return memory, None

    def discount(self) -> float | None:
        """Return the discount factor of its values, by which a report can check them; None if there is none."""
        return None

    def blank(self, spec: Spec) -> Tree:
        """Return a state whose `policy` and `critic` have the right shapes; the rest of it may be smaller than real."""
        return self.init(jax.random.key(0), spec)

    def for_acting(self) -> "Algorithm":
        """Return the algorithm without what only learning needs, such as an optimiser: a saved policy describes it."""
        return self

    def begin_with(self, state: Tree, policy: Tree) -> Tree:
        """Return a fresh state that begins with a policy that was learnt before, of the same shapes."""
        return self.with_policy(state, policy)

    def with_policy(self, state: Tree, policy: Tree) -> Tree:
        """Return the state with another policy in it, of the same shapes."""
        raise LudusError(f"algorithm={type(self).__name__}: cannot take over a saved policy: it has no with_policy")

    def with_critic(self, state: Tree, critic: Tree) -> Tree:
        """Return the state with another critic in it, of the same shapes."""
        raise LudusError(f"algorithm={type(self).__name__}: cannot take over a saved critic: it has no with_critic")

    def with_envs(self, state: Tree, num_envs: int) -> Tree:
        """Return the state for another number of environments, if it depends on that."""
        return state

    def diagnostics(self, old: Tree, new: Tree, gradient: Tree, rollout: Rollout) -> MetricVector | None:
        """Return how an update went, from the states before and after it; None if there is no more to say.

        The names are those of `algorithms.diagnostics`, and so is the mathematics.
        """
        return None

    def work(self, spec: Spec, total_steps: int | None) -> float:
        """Return roughly how many floating-point operations learning from so many steps takes; None: endless."""
        return float("inf")


REQUIRED = ("init", "policy", "act", "update", "rollout_length")
"""What an algorithm must write itself."""


def check_algorithm(algorithm: object) -> None:
    """Refuse what does not keep the protocol; name what is missing."""
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    if isinstance(algorithm, type) or not callable(getattr(algorithm, "update", None)):
        name = algorithm if algorithm is None or isinstance(algorithm, str) else kind.__name__
        raise LudusError(f"algorithm={name}: must be an algorithm such as ludus.PPO()")
    for name in (name for name in vars(Algorithm) if not name.startswith("_")):
        missing = not hasattr(algorithm, name)
        if missing or (name in REQUIRED and getattr(kind, name, None) is getattr(Algorithm, name)):
            raise LudusError(
                f"algorithm={kind.__name__}: has no {name}; inherit from ludus.Algorithm, which says what an "
                "algorithm must have"
            )
