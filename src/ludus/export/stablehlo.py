"""StableHLO: the portable form of compiled programs, which `jax.export` and other OpenXLA runtimes read."""

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax

from ludus.export.interface import Arrays, Interface
from ludus.types import LudusError

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""One file is for all of them; each runtime compiles it."""

SOURCE_LINES = "jax_traceback_in_locations_limit"
"""JAX's option for the number of source lines that it stores with each operation."""


def write(interface: Interface, path: Path) -> None:
    """Write the function for any batch size and every platform."""
    export = _jax_export()
    (batch,) = export.symbolic_shape("batch")
    shapes = {port.name: jax.ShapeDtypeStruct((batch, *port.shape), port.dtype) for port in interface.inputs}
    with _without_source_lines():
        path.write_bytes(export.export(jax.jit(interface.act), platforms=PLATFORMS)(shapes).serialize())


def read(path: Path) -> Callable[[Arrays], Arrays]:
    """Return the function in a file."""
    return jax.jit(_jax_export().deserialize(bytearray(path.read_bytes())).call)


@contextlib.contextmanager
def _without_source_lines() -> Generator[None]:
    """Leave the source lines of operations out of a program.

    They would tell everybody the folders of the machine, and equal policies would not be equal files.
    """
    before = getattr(jax.config, SOURCE_LINES)
    jax.config.update(SOURCE_LINES, 0)
    try:
        yield
    finally:
        jax.config.update(SOURCE_LINES, before)


def _jax_export() -> Any:
    try:
        import flatbuffers  # noqa: F401  jax.export needs it without asking for it
        import jax.export
    except ImportError as error:
        raise LudusError("format=stablehlo: needs FlatBuffers (pip install flatbuffers)") from error
    return jax.export
