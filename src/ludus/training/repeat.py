"""The loop around an iteration, made for both kinds of environment: compiled as a whole, or around Python.

Both run `body(plan, context, state) -> state, row` many times, and return the rows of all iterations, name by name.
"""

import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from ludus.envs.base import HostEnv
from ludus.runtime.compilation import Options, compile_clock, wait_for
from ludus.runtime.packing import PackedLayout
from ludus.training.iteration import Plan
from ludus.types import Left, Tree, Watch

Body = Callable[[Any, Tree, Tree], tuple[Tree, dict[str, Any]]]
Rows = dict[str, np.ndarray]


class Repeat(Protocol):
    """Runs an iteration many times."""

    def prepare(self, context: Tree, make_state: Callable[[], Tree]) -> None:
        """Compile ahead, for the state that `make_state` would return."""
        ...

    def __call__(self, context: Tree, state: Tree, n: int, watch: Watch | None = None) -> tuple[Tree, Rows]:
        """Run at most `n` times: the new state, and the rows of all, name by name."""
        ...


class CompiledRepeat:
    """A compiled loop that runs `body(plan, context, state) -> state, row` many times without leaving the device.

    The number of times is a traced value, so every chunk length up to `capacity` is the same program. The loop stops
    early when a row says `halt`.
    """

    def __init__(self, body: Body, plan: Plan, capacity: int, options: Options):
        """Compile nothing yet: `options` are the compiler's."""
        # Jitted so that it is traced once, though its shapes are asked for before it is called.
        self.body, self.capacity = jax.jit(partial(body, plan)), capacity
        self.programs: dict[Any, tuple[Any, PackedLayout]] = {}
        self.devices, self.options = plan.devices, dict(options)

    def prepare(self, context: Tree, make_state: Callable[[], Tree]) -> None:
        """Compile for the state that `make_state` would return; only its shapes are asked for."""
        self._program(context, jax.eval_shape(make_state))

    def __call__(
        self, context: Tree, state: Tree, n: int, watch: Watch | None = None
    ) -> tuple[Tree, dict[str, np.ndarray]]:
        """Run at most `n` times (and at most `capacity`): the new state, and the rows of all, name by name."""
        program, layout = self._program(context, state)
        began = time.perf_counter()
        state, buffer, made = program(context, state, np.int32(min(n, self.capacity)))
        wait_for(made, watch, "training")
        rows = layout.unpack([np.asarray(buffer)[: int(made)]])
        rows["seconds/iteration"] = np.full(int(made), (time.perf_counter() - began) / max(1, int(made)))
        return state, rows

    def _program(self, context: Tree, state: Tree) -> tuple[Any, PackedLayout]:
        leaves, treedef = jax.tree.flatten((context, state))
        key = treedef, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self.programs:
            with self.devices.in_use():
                row = jax.eval_shape(lambda context, state: _as_rows(self.body(context, state)[1]), context, state)
                left = self.devices.places(state)
                jitted = jax.jit(self._loop, donate_argnums=1, compiler_options=self.options, out_shardings=left)
                program = jitted.lower(context, self.devices.shapes(state), np.int32(0)).compile()
            self.programs[key] = program, PackedLayout(row)
        return self.programs[key]

    def _loop(self, context: Tree, state: Tree, n: jax.Array) -> tuple[Tree, jax.Array, jax.Array]:
        layout = PackedLayout(jax.eval_shape(lambda: _as_rows(self.body(context, state)[1])))

        def going_on(carry: Tree) -> jax.Array:
            _, _, i, halt = carry
            return (i < n) & (halt == 0)

        def step(carry: Tree) -> Tree:
            state, buffer, i, _ = carry
            state, row = self.body(context, state)
            packed = layout.pack(_as_rows(row))[0]
            return state, jax.lax.dynamic_update_slice(buffer, packed, (i, 0)), i + 1, row["halt"]

        buffer = jnp.zeros((self.capacity, layout.width), jnp.float32)
        return jax.lax.while_loop(going_on, step, (state, buffer, jnp.int32(0), jnp.int32(0)))[:3]


class PythonRepeat:
    """Runs `body(plan, context, state) -> state, row` from Python; the twin of `CompiledRepeat`.

    One call runs it once, whatever was asked for: a host environment may raise at any step, and then the caller must
    still hold the state of the last iteration that was finished.
    """

    def __init__(self, body: Body, plan: Plan):
        """Compile nothing here: what is compiled is compiled inside `body`."""
        self.body, self.plan = body, plan

    def prepare(self, context: Tree, make_state: Callable[[], Tree]) -> None:
        """Compile nothing ahead."""

    def __call__(
        self, context: Tree, state: Tree, n: int, watch: Watch | None = None
    ) -> tuple[Tree, dict[str, np.ndarray]]:
        """Run once: the new state, and an array of one row for each name."""
        began, compiled, env = time.perf_counter(), compile_clock().total, cast(HostEnv, self.plan.env)
        try:
            state, row = self.body(self.plan._replace(watch=watch), context, state)
            wait_for(row["halt"], watch, "updating")
            row = jax.device_get(row)
        except Left:
            raise  # whoever gave it up knows where the environments were
        except BaseException:
            env.needs_restart = True
            raise
        # Where the iteration has not happened, the environments have gone on all the same: not where the state says.
        env.needs_restart = env.needs_restart or bool(row["fault"])
        elsewhere = sum(x for name, x in row.items() if name.startswith("seconds/"))
        elsewhere += compile_clock().total - compiled
        row["seconds/update"] = max(0.0, time.perf_counter() - began - elsewhere)
        return state, jax.tree.map(lambda x: np.asarray([x]), row)


@lru_cache(maxsize=16)
def _compiled(body: Body, plan: Any, capacity: int, options: Options) -> CompiledRepeat:
    """Equal plans share one loop, and with it what was compiled."""
    return CompiledRepeat(body, plan, capacity, options)


def repeat(kind: Literal["compiled", "host"], body: Body, plan: Plan, capacity: int, options: Options) -> Repeat:
    """Return the loop of a plan, for the kind of environment that a `Runner` runs."""
    return _compiled(body, cast(Any, plan), capacity, options) if kind == "compiled" else PythonRepeat(body, plan)


def _as_rows(row: dict[str, Any]) -> dict[str, Any]:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], row)
