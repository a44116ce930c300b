"""How programs are compiled: the options of each kind of device, and the cache that makes a second start quick."""

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import jax


def compiler_options() -> dict[str, Any]:
    """Return XLA's options for the default device; they are part of a recorded run.

    On a CPU, LLVM's first optimisation level compiles a training loop in about half the time of the default and
    runs it as fast; the heavy lifting is in matrix kernels that are compiled already.
    """
    return {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else {}


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
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        features = next(line for line in text.splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:12]}"
