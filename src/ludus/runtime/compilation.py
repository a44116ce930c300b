"""Compiling programs: the options of each kind of device, and the cache that makes a second start quick."""

import contextlib
import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable, Generator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from ludus.types import LudusError, Watch

Options = tuple[tuple[str, Any], ...]

SHORT_WORK = 5e10
"""Up to so many floating-point operations, a CPU is done sooner with a program that is compiled in haste."""

POLL_SECONDS = 0.002
"""Seconds between two looks at a program that runs under watch."""
HAS_OLDER_GENERATORS = jax.__version_info__ < (0, 11)
"""From jax 0.11 on, XLA refuses the option that asks for its older code generators."""


def compiler_options(work: float) -> Options:
    """Return XLA's options for a program that will do so many floating-point operations in all.

    On a CPU compiling can take longer than a whole short run. LLVM's first optimisation level halves the time of XLA's
    default and costs no speed that was seen: the heavy lifting is in matrix kernels that are compiled already. XLA's
    older code generators halve it once more, but what they make runs at two thirds of the speed. The options are part
    of a recorded run: other options round differently.
    """
    if jax.default_backend() != "cpu":
        return ()
    level = ("xla_backend_optimization_level", 1)
    in_haste = work <= SHORT_WORK and HAS_OLDER_GENERATORS
    return (level, ("xla_cpu_use_fusion_emitters", False)) if in_haste else (level,)


OPTION_NAMES = ("xla_backend_optimization_level", "xla_cpu_use_fusion_emitters")
"""All that `compiler_options` ever sets; a recorded run that asks for others was not recorded by us."""


@lru_cache(maxsize=128)
def jit(function: Callable, options: Options, static: tuple[str, ...] = (), donate: tuple[str, ...] = ()) -> Callable:
    """Return `jax.jit` of a function with compiler options; the same object for the same arguments."""
    return jax.jit(function, static_argnames=static, donate_argnames=donate, compiler_options=dict(options))


def default_device() -> jax.Device:
    """Return the device that programs run on; where JAX has none, say so in one line."""
    try:
        return jax.devices()[0]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LudusError(f"JAX has no device to run on: {reason} (see the variable JAX_PLATFORMS)") from error


ASIDE = "ludus-aside"
"""The name of a thread for whose programs nobody waits: what it compiles takes none of the run's time."""


class CompileClock:
    """Tells how long JAX has been tracing and compiling: by the clock on the wall, though several threads may do it."""

    def __init__(self) -> None:
        """Begin to listen."""
        self.total = 0.0
        """All of it so far."""
        self._lapped = 0.0
        self._spans: list[tuple[float, float]] = []
        self._lock = threading.Lock()
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        seconds, self._lapped = self.total - self._lapped, self.total
        return seconds

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        if not event.startswith("/jax/core/compile/") or threading.current_thread().name == ASIDE:
            return
        end = time.perf_counter()
        start = end - duration_secs
        with self._lock:  # what overlaps, within a thread or across, counts once
            while self._spans and self._spans[-1][1] >= start:
                first, last = self._spans.pop()
                start, end, self.total = min(start, first), max(end, last), self.total - (last - first)
            self._spans.append((start, end))
            self.total += end - start


@lru_cache(maxsize=1)
def compile_clock() -> CompileClock:
    """Return the clock of this process: JAX's listeners cannot be taken back, so there is one."""
    return CompileClock()


def wait_for(array: jax.Array, watch: Watch | None, what: str, done: int = 0, total: int = 0) -> None:
    """Wait for what a program computes; whoever watches is told meanwhile, and signals are heard."""
    if watch is not None:
        watch.tell(what, done, total)
    while watch is not None and watch.expects_long and not array.is_ready():  # ty: ignore[missing-attribute]
        watch.tell(what, done, total)
        time.sleep(POLL_SECONDS)


def enable_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless the user has configured JAX's cache already.

    The folder is private to the user, since what lies in it is run as code, and its name holds the processor's
    features, since a home folder may be shared by unlike machines.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None or "JAX_ENABLE_COMPILATION_CACHE" in os.environ:
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ludus" / "xla" / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return
    except OSError:
        return  # no cache folder, no cache
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@contextlib.contextmanager
def cache_in(folder: Path) -> Generator[None]:
    """Keep compiled programs in another folder meanwhile, and take none from elsewhere."""
    name = "jax_compilation_cache_dir"
    before = jax.config.values[name]
    jax.config.update(name, str(folder))
    compilation_cache.reset_cache()
    jax.clear_caches()
    try:
        yield
    finally:
        jax.config.update(name, before)
        compilation_cache.reset_cache()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        features = next(line for line in text.splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:12]}"
