"""StableHLO: the compiler's own portable form, read by `jax.export` and other OpenXLA runtimes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from ludus.export.interface import Arrays, Interface
from ludus.types import LudusError

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""One file serves them all; each compiles it for itself."""


def write(interface: Interface, path: Path) -> None:
    """Write the function for any batch size and every platform."""
    export = _jax_export()
    (batch,) = export.symbolic_shape("batch")
    shapes = {port.name: jax.ShapeDtypeStruct((batch, *port.shape), port.dtype) for port in interface.inputs}
    path.write_bytes(export.export(jax.jit(interface.act), platforms=PLATFORMS)(shapes).serialize())


def read(path: Path) -> Callable[[Arrays], Arrays]:
    """Return the function in a file."""
    return jax.jit(_jax_export().deserialize(bytearray(path.read_bytes())).call)


def _jax_export() -> Any:
    try:
        import flatbuffers  # noqa: F401  jax.export needs it without asking for it
        import jax.export
    except ImportError as error:
        raise LudusError("format=stablehlo: needs FlatBuffers (pip install flatbuffers)") from error
    return jax.export
