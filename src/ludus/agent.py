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
from functools import partial
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from ludus.compilation import compiler_options, default_device, enable_compilation_cache, jit
from ludus.critic import Critic, load_critic, save_critic
from ludus.iteration import grafted, handed_over
from ludus.learning.algorithm import as_arrays
from ludus.learning.faults import FAULTS
from ludus.learning.registry import name_of
from ludus.policy import Policy, load_policy, save_policy
from ludus.recording import Chosen, Record, Shown, as_space
from ludus.rows import Layout, choose_rows
from ludus.seeding import folded, stream
from ludus.spaces import Box, map_leaves
from ludus.types import LudusError, Masked, Mode, Rollout, Spec, split_mask

SUFFIX, TORCH_SUFFIXES = ".safetensors", (".pth", ".pt")


class Agent:
    """Learns from what its user shows it, one step of `num_envs` environments at a time."""

    def __init__(
        self,
        algorithm: Any,
        observation_space: Any,
        action_space: Any,
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
        if isinstance(algorithm, type) or not hasattr(algorithm, "validate"):
            raise LudusError(f"algorithm={algorithm!r}: must be an algorithm such as ludus.PPO()")
        name_of(algorithm)
        if jax.config.values["jax_enable_x64"]:
            raise LudusError("jax_enable_x64 is on, and ludus computes in 32 bits: switch it off (JAX_ENABLE_X64=0)")
        _check_integer("num_envs", num_envs, 1)
        _check_integer("seed", seed, 0)
        _check_integer("total_steps", 1 if total_steps is None else total_steps, 1)
        spaces = as_space("observation space", observation_space), as_space("action space", action_space)
        self.spec = Spec(*spaces, num_envs=int(num_envs))
        algorithm.validate(self.spec)
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
        self._layouts: dict[Mode, Layout] = {}
        self._record: Record | None = None
        self._chosen: Chosen | None = None

    @property
    def policy(self) -> Policy:
        """The policy as it is now; learning on does not change it."""
        return Policy(_without_optimizer(self._arrays), _copy(self._policy), self.spec, self.env_id)

    @property
    def critic(self) -> Critic:
        """The critic as it is now; learning on does not change it."""
        state = _copy(self.algorithm.critic(self._state))
        return Critic(_without_optimizer(self._arrays), state, self.spec, self.env_id)

    @property
    def learner(self) -> Any:
        """All that was learnt: networks, optimiser, normalisers; a copy, which a `Trainer` can go on from."""
        return _copy(self._state)

    @learner.setter
    def learner(self, learner: Any) -> None:
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

    def select_action(self, obs: Any, deterministic: bool = False) -> Any:
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
        memory, packed = _act(self._arrays, self._policy, self._memory, batch, noise, t, "explore")
        self._chosen = Chosen(batch, np.array(packed), layout, memory)
        return self._answer(self._chosen.row, layout, is_single)

    def observe(self, next_obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
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
        update = jit(type(self.algorithm).update, self._options, donate=("state",))
        self._state, metrics = update(self._arrays, self._state, rollout, key)
        del metrics["gradient"]
        metrics = jax.device_get(metrics)
        self.rollouts, self._drawn, self._chosen = self.rollouts + 1, 0, None
        self._learnt += size if valid is None else int(valid.sum())
        if fault := int(metrics.pop("fault")):
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
        self._exchange(self._policy, loaded.state, self.algorithm.decide)

    def load_value_net(self, path: str | Path) -> None:
        """Go on with a critic that was saved likewise. What the policy alone uses stays as it is."""
        loaded = self._checked(load_critic(saved_file(path), self.algorithm), path)
        action = _blank(self.spec.action_space) if self.algorithm.values_actions else None
        self._exchange(self.algorithm.critic(self._state), loaded.state, partial(self.algorithm.value, action=action))
        if hasattr(self.algorithm, "settled"):
            self._state = self.algorithm.settled(self._state)

    @property
    def _policy(self) -> Any:
        return self.algorithm.policy(self._state)

    def _next_noise(self) -> tuple[Any, np.int32]:
        """Return noise and the row of it that is next; no row is used twice, whether or not it led to a step."""
        block, t = divmod(self._drawn, self._length)
        if t == 0:
            key = folded(self._keys, np.int32(self.rollouts))["noise"]
            key = jax.random.fold_in(key, block) if block else key
            self._noise = _noise(self._arrays, self._policy, key, (self._length, self.spec.num_envs))
        self._drawn += 1
        return self._noise, np.int32(t)

    def _play(self, batch: Any) -> np.ndarray:
        if jax.tree.leaves(self._memory):
            raise LudusError(
                "select_action: deterministic=True cannot tell where an episode begins, and this network has a memory: "
                "play with agent.policy(obs, memory), from agent.policy.initial_memory() on"
            )
        return np.array(_act(self._arrays, self._policy, self._memory, batch, None, np.int32(0), "greedy")[1])

    def _answer(self, row: np.ndarray, layout: Layout, is_single: bool) -> Any:
        """Take apart what `act` answered. A copy: the user may write into it."""
        action, self.extras = layout.unpack([row.copy()])
        return jax.tree.map(lambda x: x[0], action) if is_single else action

    def _layout(self, obs: Any, noise: Any) -> Layout:
        """How `_act` packs its answer; shapes are asked for once."""
        mode: Mode = "greedy" if noise is None else "explore"
        if mode not in self._layouts:
            shapes = jax.eval_shape(
                partial(_choose, mode=mode), self._arrays, self._policy, self._memory, obs, noise, 0
            )
            self._layouts[mode] = Layout(shapes[1:])
        return self._layouts[mode]

    def meet(self, observation_space: Any, action_space: Any, env_id: str | None = None) -> None:
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

    def _checked(self, loaded: Any, path: str | Path) -> Any:
        try:
            self.meet(loaded.spec.observation_space, loaded.spec.action_space)
        except LudusError as error:
            raise LudusError(f"{path}: its {error}") from error
        if loaded.spec.scaling != self.spec.scaling:
            raise LudusError(f"{path}: is older than the way in which numbers of these spaces are scaled now")
        return loaded

    def _exchange(self, part: Any, new: Any, function: Callable) -> None:
        """Put `new` in the place of `part`, whose arrays are the state's own, but for parameters `function` ignores."""
        memory, obs = self.algorithm.initial_memory(part, 1), _blank(self.spec.observation_space)

        def result(parameters: Any) -> Any:
            return function(replace(part, parameters=parameters), memory, obs)

        exchange = dict(_pairs(replace(part, parameters=()), replace(new, parameters=())))
        is_used = _used(result, part.parameters)
        pairs = zip(_pairs(part.parameters, new.parameters), is_used, strict=True)
        exchange |= dict(pair for pair, used in pairs if used)
        self._state = jax.tree.map(lambda leaf: exchange.get(id(leaf), leaf), self._state)
        self._chosen = None


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


def _agreed(ours: Any, theirs: Any, *, is_action: bool) -> Any:
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


def _choose(algorithm: Any, policy: Any, memory: Any, obs: Any, noise: Any, t: Any, mode: Mode) -> tuple[Any, Any, Any]:
    row = None if noise is None else jax.tree.map(lambda x: x[t], noise)
    return algorithm.act(policy, memory, obs, row, mode)


@partial(jax.jit, static_argnames=("mode",))
def _act(algorithm: Any, policy: Any, memory: Any, obs: Any, noise: Any, t: Any, mode: Mode) -> tuple[Any, jax.Array]:
    """Act for one step; it reads its row of noise itself and answers in one packed matrix."""
    memory, *answer = _choose(algorithm, policy, memory, obs, noise, t, mode)
    return memory, Layout(tuple(answer)).pack(tuple(answer))[0]


@partial(jax.jit, static_argnames=("shape",))
def _noise(algorithm: Any, policy: Any, key: jax.Array, shape: tuple[int, int]) -> Any:
    return algorithm.noise(policy, key, shape)


@jax.jit
def _begin_anew(algorithm: Any, policy: Any, memory: Any, ended: Any) -> Any:
    """Memory for the next step: where an episode ended, that of a start."""
    return choose_rows(ended, algorithm.initial_memory(policy, len(ended)), memory)


@jax.jit
def _copy(tree: Any) -> Any:
    """Copy every array, in one call: the next update takes the state's own over."""
    return jax.tree.map(jnp.copy, tree)


def _without_optimizer(algorithm: Any) -> Any:
    """Acting and valuing need none, and a file that holds a user's own cannot be loaded without the user's code."""
    return algorithm if getattr(algorithm, "optimizer", None) is None else replace(algorithm, optimizer=None)


def _blank(space: Any) -> Any:
    """Return a batch of one value of a space."""
    return map_leaves(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), space)


def _pairs(old: Any, new: Any) -> list[tuple[int, Any]]:
    return [(id(a), b) for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)]


def _used(function: Callable, parameters: Any) -> list[bool]:
    """Return which arrays the result of `function(parameters)` depends on."""
    program = jax.make_jaxpr(function)(parameters).jaxpr
    needed = {x for x in program.outvars if isinstance(x, Var)}
    for equation in reversed(program.eqns):
        if needed & set(equation.outvars):
            needed |= {x for x in equation.invars if isinstance(x, Var)}
    return [x in needed for x in program.invars]


def _check_integer(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise LudusError(f"{name}={value}: must be an integer of at least {low}")
