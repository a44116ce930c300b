"""The devices that a run is spread over: which they are, and what of its state lies where.

Environments, what they roll out and the rows of a replay are shared out evenly; parameters, optimiser, statistics and
counters are whole on each device. Numbers mean what they mean on one device: `num_envs`, batches, steps and seeds are
those of the run, and every random number is the same wherever it is drawn.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ludus.algorithms.base import Algorithm
from ludus.algorithms.replay import Replay
from ludus.runtime.placement import AXIS, num_devices, on_first
from ludus.training.distributed.hosts import joined
from ludus.types import Array, LudusError, Rollout, Spec, Tree

if TYPE_CHECKING:
    from ludus.training.iteration import TrainState

AUTO = "auto"
MOST_CPU_DEVICES = 256
"""More than so many simulated devices are a mistake: each takes threads and memory."""
LEAST_ENVS, LEAST_WORK = 1024, 1e10
"""For each device: environments, and operations of one update, from which on several are chosen by themselves."""


@dataclass(frozen=True)
class Devices:
    """The devices of a run; hashable, since programs are made for them."""

    mesh: Mesh | None = None
    """None: one device, and programs that know of no others."""

    @property
    def count(self) -> int:
        """Their number."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def num_processes(self) -> int:
        """The number of processes that they belong to."""
        return 1 if self.mesh is None else len({device.process_index for device in self.mesh.devices.flat})

    @property
    def first(self) -> jax.Device:
        """The first of them."""
        return jax.devices()[0] if self.mesh is None else self.mesh.devices.flat[0]

    @property
    def names(self) -> list[str]:
        """Their names, for the record."""
        return [str(device) for device in ([self.first] if self.mesh is None else self.mesh.devices.flat)]

    def __str__(self) -> str:
        """A few words for people."""
        return str(self.first) if self.mesh is None else f"{self.count} devices: {self.names[0]} to {self.names[-1]}"

    def in_use(self) -> contextlib.AbstractContextManager:
        """Return a context in which programs are made for them; within a program that is, there is nothing to do."""
        return contextlib.nullcontext() if self.mesh is None or num_devices() > 1 else jax.set_mesh(self.mesh)

    def at_first(self) -> contextlib.AbstractContextManager:
        """Return a context for what is made before the first program: each process makes it by itself."""
        return contextlib.nullcontext() if self.num_processes > 1 else self.in_use()

    def whole(self, tree: Tree) -> Any:
        """Return arrays with all of them on each device."""
        return tree if self.mesh is None else _placed(tree, jax.tree.map(lambda _: self._everywhere, tree))

    def gathered(self, tree: Tree) -> Any:
        """Return arrays that this process can read; where devices belong to several, all of these must ask for them."""
        if self.num_processes == 1:
            return tree
        return on_first(jax.jit(lambda tree: tree, out_shardings=self._everywhere)(tree))

    def place(self, state: "TrainState") -> "TrainState":
        """Return a state with every array where it belongs, inside a program or outside."""
        return state if self.mesh is None else _placed(state, self.layout(state))

    def place_learner(self, learner: Tree) -> Any:
        """Return a learner's state with every array where it belongs."""
        return learner if self.mesh is None else _placed(learner, self._learner(learner))

    def place_rollout(self, carry: Tree, rollout: Rollout) -> tuple[Any, Rollout]:
        """Return the environments and what they have made with each device's share on it."""
        if self.mesh is None:
            return carry, rollout
        steps, rows = (NamedSharding(self.mesh, PartitionSpec(*axes)) for axes in ((None, AXIS), (AXIS,)))
        blank = jax.tree.map(lambda _: rows, rollout)
        blank = blank._replace(steps=jax.tree.map(lambda _: steps, rollout.steps), is_start=self._everywhere)
        rollout = _placed(rollout, blank._replace(progress=self._everywhere))
        return _placed(carry, self._carry(carry)), rollout

    def layout(self, state: "TrainState") -> Any:
        """Return where each array of a state belongs, as a tree like it."""
        blank = jax.tree.map(lambda _: self._everywhere, replace(state, carry=(), learner=()))
        return replace(blank, carry=self._carry(state.carry), learner=self._learner(state.learner))

    def _carry(self, carry: Tree) -> Any:
        blank = jax.tree.map(lambda _: self._everywhere, carry)
        return blank._replace(**{name: self._by_rows(getattr(carry, name)) for name in ("env", "memory")})

    def _learner(self, learner: Tree) -> Any:
        def of(node: Tree) -> Any:
            blank = jax.tree.map(lambda _: self._everywhere, node)
            if not isinstance(node, Replay):
                return blank
            return replace(blank, **{name: self._by_rows(getattr(node, name)) for name in ("frames", "transitions")})

        return jax.tree.map(of, learner, is_leaf=lambda node: isinstance(node, Replay))

    def _by_rows(self, tree: Tree) -> Any:
        assert self.mesh is not None
        rows = NamedSharding(self.mesh, PartitionSpec(AXIS))
        return jax.tree.map(lambda _: rows, tree)

    @property
    def _everywhere(self) -> NamedSharding:
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec())

    def places(self, state: "TrainState") -> Any:
        """Return where a loop leaves the state and two arrays besides; None: wherever they are."""
        return None if self.mesh is None else (self.layout(state), self._everywhere, self._everywhere)

    def shapes(self, state: "TrainState") -> Any:
        """Return the outline of a state, with where each array belongs."""
        if self.mesh is None:
            return state
        return jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state, self.layout(state)
        )


ONE = Devices()


def _placed(tree: Tree, places: Tree) -> Any:
    """Move arrays, or inside a program say where they lie."""
    is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))
    if is_traced:
        return jax.tree.map(jax.lax.with_sharding_constraint, tree, places)
    if all(place.is_fully_addressable for place in jax.tree.leaves(places)):
        return jax.device_put(tree, places)
    return jax.tree.map(_put_across, tree, places)


def broadcast(tree: Tree, is_source: bool) -> Any:
    """Return the arrays of the source in every process, on its first device; all of these must ask for them at once."""
    is_key = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(tree)]
    leaves, treedef = jax.tree.flatten(tree)
    plain = [jax.random.key_data(leaf) if key else leaf for leaf, key in zip(leaves, is_key, strict=True)]
    given = [np.asarray(x) if is_source else np.zeros(x.shape, x.dtype) for x in plain]
    got = multihost_utils.broadcast_one_to_all(given, is_source=is_source)
    made = [
        jax.random.wrap_key_data(jax.device_put(x), impl=jax.random.key_impl(leaf)) if key else np.asarray(x)
        for x, leaf, key in zip(got, leaves, is_key, strict=True)
    ]
    return jax.tree.unflatten(treedef, made)


def _put_across(leaf: Array, place: NamedSharding) -> jax.Array:
    """Put this process's part of an array, all of which it holds, where it belongs; the others put theirs."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return leaf  # it is there already
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _put_across(jax.random.key_data(leaf), place)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    here = np.asarray(leaf)
    return jax.make_array_from_callback(here.shape, place, lambda index: here[index])


def ask_for(devices: object) -> None:
    """Before JAX starts: let a CPU show itself as so many devices. Where JAX runs already, nothing is changed.

    Processes that train together have them in equal parts.
    """
    team = joined()
    if isinstance(devices, int) and not isinstance(devices, bool) and team is not None:
        devices = devices // team.seat.count
    if isinstance(devices, int) and not isinstance(devices, bool) and 1 < devices <= MOST_CPU_DEVICES:
        with contextlib.suppress(RuntimeError):  # JAX runs already
            jax.config.update("jax_num_cpu_devices", max(devices, jax.config.values["jax_num_cpu_devices"]))


def check(devices: object) -> None:
    """Refuse what is no number of devices."""
    is_number = isinstance(devices, int) and not isinstance(devices, bool) and devices >= 1
    if devices != AUTO and not is_number:
        raise LudusError(f"devices={devices}: must be auto or an integer of at least 1")


def choose(asked: int | str, algorithm: Algorithm, spec: Spec) -> Devices:
    """Return the devices of a run; LudusError if there are not so many, or work cannot be shared out evenly to them."""
    there = jax.devices()
    if (hosts := jax.process_count()) > 1:
        if asked not in (AUTO, len(there)):
            raise LudusError(
                f"devices={asked}: {hosts} processes have {len(there)} devices, and must use all; give auto"
            )
        asked = len(there)
    if asked == AUTO:
        return _fitting(there, algorithm, spec)
    assert isinstance(asked, int)
    if asked > len(there):
        raise LudusError(f"devices={asked}: {_too_few(asked, there)}")
    check_shares(asked, algorithm, spec)
    return _meshed(there[:asked])


def check_shares(count: int, algorithm: Algorithm, spec: Spec) -> None:
    """Refuse environments and batches that so many devices cannot share evenly."""
    if count == 1:
        return
    if spec.num_envs % count:
        raise LudusError(f"devices={count}: must divide num_envs={spec.num_envs}")
    algorithm.check_devices(spec, count)


def _too_few(asked: int, there: list[jax.Device]) -> str:
    platform, count = there[0].platform, len(there)
    found = f"JAX has {count} {platform} device{'s' if count > 1 else ''} here"
    if platform != "cpu":
        return f"{found}; give at most {count}, or auto"
    if asked > MOST_CPU_DEVICES:
        return f"a CPU shows itself as {MOST_CPU_DEVICES} devices at most"
    return f"{found} and runs already; before it starts, set XLA_FLAGS=--xla_force_host_platform_device_count={asked}"


def _fitting(there: list[jax.Device], algorithm: Algorithm, spec: Spec) -> Devices:
    """Return all accelerators if the work is great enough and they can share it evenly; else one device."""
    count = len(there)
    if count == 1 or there[0].platform == "cpu":
        return ONE
    steps = spec.num_envs * algorithm.rollout_length(spec.num_envs)
    if spec.num_envs < LEAST_ENVS * count or algorithm.work(spec, steps) < LEAST_WORK * count:
        return ONE
    try:
        check_shares(count, algorithm, spec)
    except LudusError:
        return ONE
    return _meshed(there)


def _meshed(devices: list[jax.Device]) -> Devices:
    if len(devices) == 1:
        return ONE
    return Devices(Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,)))
