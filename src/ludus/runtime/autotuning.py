"""The GPU kernels that XLA has chosen for a run, kept with it, so that every process of the run computes the same bits.

For many operations XLA knows several kernels. When it compiles a program it times them and takes the fastest: in each
process anew, so that two processes with the same seed may take different ones, which round differently. XLA can write
down what it chose and read that instead of timing. A new run on a GPU writes its choices into its folder; whoever goes
on with the run reads them, on any machine with that kind of GPU, and also starts sooner.

XLA reads its flags once, when JAX starts. So the command line calls `begin` or `go_on` before that; where JAX runs
already, as in a user's own program, nothing is known of its choices, and a resumed run says so.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ludus.runtime import files
from ludus.types import LudusError

AUTOTUNING = "autotuning"
"""Folder of the choices in a run folder, and in the user's cache folder; each file has the SHA-256 of its content."""
MOST_BYTES = 1 << 25
WRITE, READ = "--xla_gpu_dump_autotune_results_to", "--xla_gpu_load_autotune_results_from"
DETERMINISTIC = "--xla_gpu_deterministic_ops"
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


class Choices(NamedTuple):
    """The origin of this process's kernels."""

    how: Literal["measured", "read", "deterministic"]
    file: Path | None = None
    """What XLA writes or reads."""
    programs: str = ""
    """What they were chosen for, by a name that the same programs have in every run; empty: for one run's programs."""


_process: Choices | None = None
"""Of this process: XLA reads its flags once. None if nothing is known."""
_has_started = False
"""Whether JAX was started here."""


def will_use_gpu() -> bool:
    """Whether JAX will run on an NVIDIA GPU, as far as that can be told before it starts."""
    platform = (os.environ.get("JAX_PLATFORMS") or "cuda").partition(",")[0]
    return platform in ("cuda", "gpu") and any(map(find_spec, PLUGINS)) and Path("/dev/nvidiactl").exists()


def begin(config: dict[str, Any], deterministic: bool = False) -> None:
    """Before JAX starts: let a new run read what an earlier one of the same programs chose, or write down its own.

    With `deterministic` no kernel is timed and none may depend on the order of additions: slower, and equal numbers
    follow from the seed alone.
    """
    if not will_use_gpu() or _is_set_by_user():
        return
    programs = _name_of(config)
    if _has_started:
        _adopt(programs)
        return
    if deterministic:
        _start(Choices("deterministic"), f"{DETERMINISTIC}=true")
        return
    with contextlib.suppress(OSError, ValueError):
        digest = files.read(_shelf() / programs, 64).decode("ascii")
        if (known := _shelf() / digest).is_file() and _digest(files.read(known, MOST_BYTES)) == digest:
            _start(Choices("read", known, programs), f"{READ}={known}")
            return
    # A name of its own is part of the cache's keys: no program of this run can come from the cache, where it would lie
    # compiled with choices that nobody wrote down.
    written = Path(tempfile.mkdtemp(prefix="ludus-autotuning-")) / "choices.pb"
    _start(Choices("measured", written, programs), f"{WRITE}={written}")


def go_on(run: Path, identity: dict[str, Any], config: dict[str, Any]) -> None:
    """Before JAX starts: let a run that is resumed read the choices in its folder; LudusError if they are damaged.

    Where it has none, because it was killed before it had compiled or was trained by a user's own program, it writes
    them down from now on.
    """
    noted = identity.get("autotuning")
    if not will_use_gpu() or _has_started or _is_set_by_user():
        return
    if not isinstance(noted, dict):
        begin(config)
    elif noted.get("how") == "deterministic":
        _start(Choices("deterministic"), f"{DETERMINISTIC}=true")
    elif noted.get("sha256") is None:
        begin(config)
    else:
        # In the cache folder they have the same path for every run: compiled programs can be found again.
        data, place = _kept(run, str(noted["sha256"])), _shelf() / str(noted["sha256"])
        try:
            if not place.exists():
                _put(place, data)
        except OSError:
            place = run.absolute() / AUTOTUNING / place.name
        _start(Choices("read", place), f"{READ}={place}")


def keep(run: Path) -> dict[str, str | None] | None:
    """Write the choices of this process into a run folder; return what run.json says of them, None if not known."""
    if _process is None:
        return None
    how, file, programs = _process
    if file is None:
        return {"how": how, "sha256": None}
    if not file.exists():
        return None
    data = files.read(file, MOST_BYTES)
    digest = _digest(data)
    if not (run / AUTOTUNING / digest).exists():
        _put(run / AUTOTUNING / digest, data)
    if how == "measured":
        with contextlib.suppress(OSError):  # without the cache folder, the next run measures anew
            if not (_shelf() / digest).exists():
                _put(_shelf() / digest, data)
                files.write_whole(_shelf() / programs, digest.encode())
    return {"how": how, "sha256": digest}


def is_known(noted: Any) -> bool:
    """Whether this process has the kernels that run.json notes for a run."""
    if _process is None or not isinstance(noted, dict):
        return False
    how, file, _ = _process
    if noted.get("how") == "deterministic" or how == "deterministic":
        return noted.get("how") == how
    return how == "read" and file is not None and noted.get("sha256") == file.name


def is_measuring() -> bool:
    """Whether XLA still chooses while it compiles."""
    return _process is not None and _process.how == "measured"


def is_deterministic() -> bool:
    """Whether numbers follow from the seed alone: on a CPU always, on a GPU if XLA was told so before it started."""
    import jax

    told = f"{DETERMINISTIC}=true" in os.environ.get("XLA_FLAGS", "") or (_process and _process.how == "deterministic")
    return bool(told) or jax.default_backend() != "gpu"


def _start(choices: Choices, *flags: str) -> None:
    """Start JAX with more flags, which no child of this process is to inherit."""
    global _process, _has_started
    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = " ".join([before or "", *flags]).strip()
    import jax

    try:
        jax.jit(lambda x: x + 1)(0).block_until_ready()
    except RuntimeError as error:
        raise LudusError(f"JAX has no device to run on: {str(error).splitlines()[0]}") from error
    finally:
        os.environ.pop("XLA_FLAGS")
        if before is not None:
            os.environ["XLA_FLAGS"] = before
    _has_started = True
    if jax.default_backend() == "gpu":
        _process = choices


def _adopt(programs: str) -> None:
    """Go on to the programs of another configuration: what XLA writes holds them too, what it has read does not."""
    global _process
    if _process is not None and _process.how == "measured":
        _process = _process._replace(programs=programs)
    elif _process is not None and _process.how == "read" and _process.programs != programs:
        _process = None


def _is_set_by_user() -> bool:
    return any(flag in os.environ.get("XLA_FLAGS", "") for flag in (WRITE, READ, DETERMINISTIC))


def _name_of(config: dict[str, Any]) -> str:
    """Return a name for the programs of a configuration on this GPU with these versions, whatever the seed."""
    parts = {name: value for name, value in config.items() if name not in ("seed", "run_dir")}
    gpus = sorted(path.read_text() for path in Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = [line for text in gpus for line in text.splitlines() if line.startswith("Model")]
    text = json.dumps([parts, models, _versions()], sort_keys=True, default=str)
    return f"programs-{_digest(text.encode())[:32]}"


def _versions() -> list[str]:
    found = []
    for name in ("ludus", "jax", "jaxlib", *(name.replace("_", "-") for name in PLUGINS)):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return found


def _kept(run: Path, digest: str) -> bytes:
    path = run / AUTOTUNING / digest
    try:
        data = files.read(path, MOST_BYTES) if len(digest) == 64 and digest.isalnum() else b""
    except OSError as error:
        raise LudusError(
            f"{path}: cannot be read ({error.strerror}): the run's choice of GPU kernels is lost"
        ) from error
    if _digest(data) != digest:
        raise LudusError(f"{path}: is damaged; without the run's GPU kernels last bits differ: --fallback")
    return data


def _shelf() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ludus" / AUTOTUNING


def _put(path: Path, data: bytes) -> None:
    files.make_folder(path.parent)
    files.write_whole(path, data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
