"""The algorithms for people who own their loop: a robot, a game server, a simulator that calls us.

    action = agent.select_action(obs)
    ...                                                          # act in the world
    agent.observe(next_obs, reward, terminated, truncated)
    metrics = agent.update()                                     # empty until there is enough to learn from

An `Agent` records what it is shown into rollouts of one fixed shape and hands them to the functions that the trainer
uses too: with the same seed and the same world it learns what a trainer would.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ludus.algorithms.base import Algorithm, check_algorithm
from ludus.algorithms.critic import Critic, load_critic, save_critic
from ludus.algorithms.finite_checks import FAULTS, CheckedUpdate, checked
from ludus.algorithms.hyperparameters import as_arrays, at, register
from ludus.algorithms.policy import Policy, load_policy, save_policy
from ludus.algorithms.policy_file import Learned
from ludus.rollout.acting import act, draw_noise, layout_of
from ludus.rollout.user_loop import Chosen, Record, Shown, as_space, check_branching
from ludus.runtime.compilation import compiler_options, default_device, enable_compilation_cache, jit
from ludus.runtime.packing import PackedLayout, choose_rows
from ludus.runtime.rng import folded, stream
from ludus.spaces import Box, Space
from ludus.training.iteration import grafted, handed_over
from ludus.types import Array, LudusError, Masked, Mode, Rollout, Spec, Tree, split_mask

SUFFIX, TORCH_SUFFIXES = ".safetensors", (".pth", ".pt")


class Agent:
    """Learns from what its user shows it, one step of `num_envs` environments at a time."""

    def __init__(
        self,
        algorithm: Algorithm,
        observation_space: object,
        action_space: object,
        *,
        num_envs: int = 1,
        seed: int = 0,
        total_steps: int | None = None,
        env_id: str = "own loop",
    ):
        """Check everything that can be checked before anything is compiled.

        Args:
            algorithm: such as `ludus.PPO()` or `ludus.SAC()`.
            observation_space: of one environment; a space of `ludus.spaces` or of Gymnasium.
            action_space: likewise.
            num_envs: environments that are stepped together. With one, observations may come without a batch axis.
            seed: the one number that all randomness comes from.
            total_steps: the budget that schedules such as the learning rate's follow; None keeps them at their start.
            env_id: what saved policies say they were trained on; an id of `ludus.make_env` lets them be evaluated.
        """
        check_algorithm(algorithm)
        register(type(algorithm))
        if jax.config.values["jax_enable_x64"]:
            raise LudusError("jax_enable_x64 is on, and ludus computes in 32 bits: switch it off (JAX_ENABLE_X64=0)")
        _check_integer("num_envs", num_envs, 1)
        _check_integer("seed", seed, 0)
        _check_integer("total_steps", 1 if total_steps is None else total_steps, 1)
        spaces = as_space("observation space", observation_space), as_space("action space", action_space)
        self.spec = Spec(*spaces, num_envs=int(num_envs))
        algorithm.validate(self.spec)
        check_branching(algorithm.branching())
        self._shown = Shown(self.spec)
        self.device = default_device()
        enable_compilation_cache()
        self.algorithm, self.seed, self.total_steps, self.env_id = algorithm, int(seed), total_steps, env_id
        self.steps = self.rollouts = self._learnt = 0
        self.extras: Any = {}
        """What the algorithm said of the last selected actions, for PPO `sample` and `log_prob`."""
        self._length = algorithm.rollout_length(self.spec.num_envs)
        self._arrays = as_arrays(algorithm)
        self._state = algorithm.init(stream(self.seed, "init"), self.spec)
        self._options = compiler_options(algorithm.work(self.spec, total_steps))
        self._keys = {"noise": stream(self.seed, "rollout noise"), "update": stream(self.seed, "update")}
        self._noise, self._drawn = None, 0
        self._memory = algorithm.initial_memory(self._policy, self.spec.num_envs)
        self._layouts: dict[Mode, PackedLayout] = {}
        self._record: Record | None = None
        self._chosen: Chosen | None = None

    @property
    def policy(self) -> Policy:
        """The policy as it is now; learning on does not change it."""
        return Policy(self._arrays.for_acting(), _copy(self._policy), self.spec, self.env_id)

    @property
    def critic(self) -> Critic:
        """The critic as it is now; learning on does not change it."""
        state = self.algorithm.critic(self._state)
        if state is None:
            raise LudusError(f"algorithm={type(self.algorithm).__name__}: has no critic")
        return Critic(self._arrays.for_acting(), _copy(state), self.spec, self.env_id)

    @property
    def learner(self) -> Tree:
        """All that was learnt: networks, optimiser, normalisers; a copy, which a `Trainer` can go on from."""
        return _copy(self._state)

    @learner.setter
    def learner(self, learner: Tree) -> None:
        self._state = handed_over(self.algorithm, self._state, learner, self.spec.num_envs)
        self._chosen = None

    @property
    def recorded(self) -> int:
        """Steps of each environment that were observed since the last update."""
        return 0 if self._record is None else self._record.filled

    @property
    def is_ready(self) -> bool:
        """Whether a whole rollout was observed: `update` will learn, and `select_action` waits for that."""
        return self.recorded == self._length

    def select_action(self, obs: Tree, deterministic: bool = False) -> Any:
        """Choose an action for each environment.

        Args:
            obs: what the environments show, `[num_envs, ...]`; of a single one also without that axis, and then so is
                the action. `ludus.Masked(obs, action_mask)` says which actions are allowed.
            deterministic: take the best action instead of exploring. Such actions are played, not learnt from.
        """
        batch, is_single = self._shown.observations("select_action: obs", obs)
        if deterministic:
            return self._answer(self._play(batch), self._layout(batch, None), is_single)
        if self._record is not None and isinstance(batch, Masked) != isinstance(self._record.obs, Masked):
            raise LudusError("select_action: obs must be ludus.Masked at every step or at none")
        if self.is_ready:
            raise LudusError(f"select_action: {self._length} steps are waiting to be learnt from: call update() first")
        noise, t = self._next_noise()
        layout = self._layout(batch, noise)
        memory, packed = act(self._arrays, self._policy, self._memory, batch, None, noise, t, "explore")
        self._chosen = Chosen(batch, np.array(packed), layout, memory)
        return self._answer(self._chosen.row, layout, is_single)

    def observe(self, next_obs: Tree, reward: Array, terminated: Array, truncated: Array) -> None:
        """Take in what the last selected actions led to.

        Args:
            next_obs: what followed, also where the episode ended: never the observation after a reset.
            reward: a number for each environment.
            terminated: whether the episode came to an end of its own, so that nothing follows.
            truncated: whether it was merely cut, as by a time limit: it would have gone on from `next_obs`.
        """
        chosen = self._chosen
        if chosen is None:
            raise LudusError(
                "observe: there is no action to see the outcome of: call select_action(obs) before each observe, "
                "without deterministic=True"
            )
        # Where an episode is over nothing need be allowed, so the mask is not looked at.
        successor, _ = self._shown.observations("observe: next_obs", split_mask(next_obs)[0])
        reward = self._shown.numbers("reward", reward)
        ends = self._shown.flags("terminated", terminated), self._shown.flags("truncated", truncated)
        if self._record is None:
            self._record = Record(self._length, chosen, self._memory)
        self._record.add(chosen, successor, reward, *ends)
        self.steps += self.spec.num_envs
        self._memory, self._chosen = chosen.memory, None
        ended = ends[0] | ends[1]
        if ended.any() and jax.tree.leaves(self._memory):
            self._memory = _begin_anew(self._arrays, self._policy, self._memory, ended)

    def update(self, partial: bool = False) -> dict[str, float]:
        """Learn from the recorded rollout if it is full; return what the algorithm measured, or `{}`.

        Args:
            partial: learn from what was observed so far, however little, such as at the end of an episode. Rollouts
                of every length share one program.
        """
        record = self._record
        if record is None or not (partial or self.is_ready):
            return {}
        self._record = None
        progress = min(1.0, self._learnt / self.total_steps) if self.total_steps else 0.0
        return self.learn(record.rollout(progress))

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout `[T, num_envs]`, such as one recorded elsewhere; return what the algorithm measured."""
        key = folded(self._keys, np.int32(self.rollouts))["update"]
        valid, size = rollout.steps.valid, rollout.steps.reward.size
        update = jit(_update, self._options, donate=("state",))
        update = update(self._arrays, self._state, rollout, key)
        self._state, metrics = update.state, jax.device_get({**update.metrics, "updates": update.updates})
        self.rollouts, self._drawn, self._chosen = self.rollouts + 1, 0, None
        self._learnt += size if valid is None else int(valid.sum())
        if fault := int(update.fault):
            raise LudusError(
                f"update: {FAULTS[fault]} is not finite (NaN or Inf) in rollout {self.rollouts}, after {self.steps:,} "
                "steps; nothing was learnt from it, and the agent is as it was before"
            )
        return {name: value.item() for name, value in metrics.items() if np.isfinite(value)}

    def save_policy_net(self, path: str | Path) -> Path:
        """Write the policy, complete with its normaliser, to the file of that name, and return it.

        A name that ends in `.pth` or `.pt` is written as PyTorch's, any other as safetensors; both can be loaded again.
        """
        return _save(self.policy, save_policy, path)

    def save_value_net(self, path: str | Path) -> Path:
        """Write the critic, complete with its normalisers, likewise."""
        return _save(self.critic, save_critic, path)

    def load_policy_net(self, path: str | Path) -> None:
        """Go on with a policy that was saved by an agent or a trainer of the same spaces and network.

        Bounds that the agent was not told it takes over. What the critic alone uses stays as it is.
        """
        loaded = self._checked(load_policy(saved_file(path), self.algorithm), path)
        self._state, self._chosen = self.algorithm.with_policy(self._state, loaded.state), None

    def load_value_net(self, path: str | Path) -> None:
        """Go on with a critic that was saved likewise. What the policy alone uses stays as it is."""
        loaded = self._checked(load_critic(saved_file(path), self.algorithm), path)
        self._state, self._chosen = self.algorithm.with_critic(self._state, loaded.state), None

    @property
    def _policy(self) -> Tree:
        return self.algorithm.policy(self._state)

    def _next_noise(self) -> tuple[Tree, np.int32]:
        """Return noise and the row of it that is next; no row is used twice, whether or not it led to a step."""
        block, t = divmod(self._drawn, self._length)
        if t == 0:
            key = folded(self._keys, np.int32(self.rollouts))["noise"]
            key = jax.random.fold_in(key, block) if block else key
            self._noise = draw_noise(self._arrays, self._policy, key, (self._length, self.spec.num_envs))
        self._drawn += 1
        return self._noise, np.int32(t)

    def _play(self, batch: Tree) -> np.ndarray:
        if jax.tree.leaves(self._memory):
            raise LudusError(
                "select_action: deterministic=True cannot tell where an episode begins, and this network has a memory: "
                "play with agent.policy(obs, memory), from agent.policy.initial_memory() on"
            )
        return np.array(act(self._arrays, self._policy, self._memory, batch, None, None, np.int32(0), "greedy")[1])

    def _answer(self, row: np.ndarray, layout: PackedLayout, is_single: bool) -> Any:
        """Take apart what `act` answered. A copy: the user may write into it."""
        action, self.extras = layout.unpack([row.copy()])
        return jax.tree.map(lambda x: x[0], action) if is_single else action

    def _layout(self, obs: Tree, noise: Tree) -> PackedLayout:
        """Return how `act` packs its answer."""
        mode: Mode = "greedy" if noise is None else "explore"
        if mode not in self._layouts:
            self._layouts[mode] = layout_of(self._arrays, self._policy, self._memory, obs, noise, mode)
        return self._layouts[mode]

    def meet(self, observation_space: object, action_space: object, env_id: str | None = None) -> None:
        """Take over bounds that the agent was not told, from spaces that are like its own; others are refused."""
        spaces = []
        for name, given in (("observation_space", observation_space), ("action_space", action_space)):
            theirs, ours = as_space(name, given), getattr(self.spec, name)
            if (agreed := _agreed(ours, theirs, is_action=name == "action_space")) is None:
                raise LudusError(f"{name} is {theirs}, but this agent's is {ours}")
            spaces.append(agreed)
        self.env_id = env_id or self.env_id
        spec = replace(self.spec, observation_space=spaces[0], action_space=spaces[1])
        if spec != self.spec:
            self.spec, self._shown, self._chosen = spec, Shown(spec), None
            self._state = grafted(self.algorithm.init(stream(self.seed, "init"), spec), self._state)

    def _checked(self, loaded: Learned, path: str | Path) -> Learned:
        try:
            self.meet(loaded.spec.observation_space, loaded.spec.action_space)
        except LudusError as error:
            raise LudusError(f"{path}: its {error}") from error
        if loaded.spec.scaling != self.spec.scaling:
            raise LudusError(f"{path}: is older than the way in which numbers of these spaces are scaled now")
        return loaded


def saved_file(path: str | Path) -> Path:
    """Return the file of that name; if there is none, the one whose suffix was left out, or which stands for it."""
    path = Path(path)
    names = [path.name, *(path.name + suffix for suffix in (SUFFIX, *TORCH_SUFFIXES))]
    if path.suffix in TORCH_SUFFIXES:
        names.append(path.stem + SUFFIX)
    return next((file for file in map(path.with_name, names) if file.is_file()), path)


def _save(learned: Policy | Critic, save: Callable, path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in TORCH_SUFFIXES:
        save(learned, path)
        return path
    if find_spec("torch") is None:
        raise LudusError(
            f"{path}: a {path.suffix} file is PyTorch's, which is not installed (pip install 'ludus[torch]'); "
            "any other name is written as safetensors"
        )
    from ludus.export.torch_files import write

    write(learned, path)
    return path


def _agreed(ours: Space, theirs: Space, *, is_action: bool) -> Space | None:
    """Return the space that two stand for; None if they are different ones.

    Bounds of measured observations mean nothing to a network. Actions are scaled to theirs, so they must be known or
    equal.
    """
    if ours == theirs:
        return ours
    if not (isinstance(ours, Box) and isinstance(theirs, Box) and ours.is_float and theirs.is_float):
        return None
    is_told = any(np.isfinite(bound).any() for bound in ours.bounds)
    if ours.shape != theirs.shape or (is_action and is_told):
        return None
    return ours if is_told else theirs


def _update(algorithm: Algorithm, state: Tree, rollout: Rollout, key: jax.Array) -> CheckedUpdate:
    algorithm = at(algorithm, rollout.progress)
    return checked(algorithm.update(state, rollout, key), state, rollout)._replace(gradient=())


@jax.jit
def _begin_anew(algorithm: Algorithm, policy: Tree, memory: Tree, ended: Array) -> Tree:
    """Memory for the next step: where an episode ended, that of a start."""
    return choose_rows(ended, algorithm.initial_memory(policy, len(ended)), memory)


@jax.jit
def _copy(tree: Tree) -> Tree:
    """Copy every array, in one call: the next update takes the state's own over."""
    return jax.tree.map(jnp.copy, tree)


def _check_integer(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise LudusError(f"{name}={value}: must be an integer of at least {low}")
