"""A policy or a critic that works on its own: complete in one file, normaliser included.

The file is safetensors: named arrays and a header of text. It can execute nothing, and nothing of it is used before
names, shapes, types and numbers were checked against the network that the header describes. A PyTorch file of ours is
a zip archive that holds one such file besides: that alone is read of it.
"""

import contextlib
import hashlib
import json
import logging
import tempfile
import zipfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

import jax
import numpy as np

from ludus.algorithms.base import Algorithm
from ludus.algorithms.hyperparameters import as_arrays, at_end
from ludus.algorithms.registry import build, builder, describe
from ludus.networks.action_scaling import settled
from ludus.networks.builders import NETWORKS
from ludus.networks.network import Network
from ludus.networks.tokens import layer_sizes
from ludus.networks.vectors import vector_size
from ludus.runtime import files
from ludus.spaces import Space, flatten, from_data, leaves, mask_size, to_data, unflatten
from ludus.types import LudusError, Masked, Scaling, Spec, Tree, split_mask

MOST_ENVS = 2**24
"""A file that says it was trained in more environments is not believed."""
MOST_NUMBERS = 2**24
"""Nor one that says that an observation, of which an encoder reads token by token, holds more numbers."""
ENCLOSED = "ludus.safetensors"
"""What the safetensors file inside a PyTorch file is called."""
PARAMETERS = "parameters/"
"""Beginning of the names of a network's parameters."""
ARCHIVE = b"PK\x03\x04"
"""How a zip archive begins, and no safetensors file does: it would be longer than any disk."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Learned:
    """An algorithm, the part of its state that is needed, and the spaces it was made for."""

    algorithm: Algorithm
    state: Tree
    spec: Spec
    env_id: str

    @cached_property
    def acting(self) -> Algorithm:
        """The algorithm as it acts outside of training: with what its schedules end with."""
        return at_end(self.algorithm)

    def initial_memory(self, n: int = 1) -> Any:
        """Memory at the start of `n` episodes; `()` for a network without one."""
        return self.algorithm.initial_memory(self.state, n)

    def as_batch(self, obs: Tree) -> tuple[Any, bool]:
        """Return observations as a batch of arrays of the space's types, and whether there was only one."""
        obs, mask = split_mask(obs)
        batch, single = self._arrays(self.spec.observation_space, obs, "an observation")
        if mask is not None:
            mask = np.asarray(mask, bool)
            if mask.shape[-1:] != (mask_size(self.spec.action_space),):
                action_space = self.spec.action_space
                raise LudusError(f"{self._name}: a mask of shape {mask.shape} does not fit {action_space}")
            batch = Masked(batch, mask[None] if single else mask)
        return batch, single

    def _arrays(self, space: Space, value: Tree, what: str) -> tuple[Any, bool]:
        """Return values of a space as a batch, and whether there was only one."""
        try:
            parts = flatten(space, value)
        except ValueError as error:
            raise LudusError(f"{self._name}: {what} unlike its space: {error}") from error
        arrays = [np.asarray(part, leaf.dtype) for (_, leaf), part in zip(leaves(space), parts, strict=True)]
        single = arrays[0].ndim == len(leaves(space)[0][1].shape)
        return unflatten(space, [array[None] if single else array for array in arrays]), single

    @property
    def _name(self) -> str:
        return f"{type(self).__name__.lower()} of {self.env_id}"


Kind = TypeVar("Kind", bound=Learned)


def save(learned: Learned, format: str, path: Path) -> None:
    """Write one safetensors file; it appears whole or not at all."""
    write_file(path, as_bytes(learned, format))


def write_file(path: Path, data: bytes) -> None:
    """Write a file, and the folders that it needs; LudusError if it cannot be."""
    try:
        files.make_folder(path.parent)
        files.write_whole(path, data)
    except OSError as error:
        raise LudusError(f"{path}: cannot be written ({error.strerror or error})") from error


def as_bytes(learned: Learned, format: str) -> bytes:
    """Return what the safetensors file of a policy or a critic holds."""
    from safetensors.numpy import save

    header = {
        "format": format,
        "algorithm": json.dumps(describe(jax.tree.map(float, learned.algorithm.for_acting()))),
        "observation_space": json.dumps(to_data(learned.spec.observation_space)),
        "action_space": json.dumps(to_data(learned.spec.action_space)),
        "num_envs": str(learned.spec.num_envs),
        "scaling": learned.spec.scaling,
        "env": learned.env_id,
    }
    arrays = _named_arrays(learned.state)
    return _in_order(save(arrays, {**header, "sha256": checksum(header, arrays)}))


def _in_order(data: bytes) -> bytes:
    """Return a safetensors file with its header sorted: the library shuffles it, and equal policies are equal files."""
    stop = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:stop]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # arrays begin at a multiple of 8
    return b"".join((len(header).to_bytes(8, "little"), header, memoryview(data)[stop:]))


def load(kind: type[Kind], format: str, file: Path, algorithm: Algorithm | None, part: Callable) -> Kind:
    """Read a file; `part(algorithm, state)` is the part of a learner's whole state that it holds."""
    noun = kind.__name__.lower()
    header, arrays = _read(file, format, noun)
    try:
        spaces = [from_data(json.loads(header[name])) for name in ("observation_space", "action_space")]
        spec = settled(Spec(*spaces, num_envs=int(header["num_envs"]), scaling=scaling_in(header)))
        env_id, description = header["env"], json.loads(header["algorithm"])
        if algorithm is None:
            _check_size(spec, description.get("network"), arrays)
            algorithm = build(description, saved_in=str(file))
        _check_alike(algorithm, description)
        blank = part(algorithm, algorithm.blank(spec))
    except LudusError as error:
        raise LudusError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise LudusError(f"{file}: its header is damaged ({type(error).__name__}: {error})") from error
    names = [name for name in description if name.startswith("normalize_")]
    unlike = [name for name in names if getattr(algorithm, name, None) != description[name]]
    hint = "".join(f"; it was made with {name}={description[name]}" for name in unlike)
    return kind(as_arrays(algorithm), _filled(blank, arrays, file, hint), spec, env_id)


def _check_alike(algorithm: Algorithm, description: dict[str, Any]) -> None:
    """Refuse a network that would make something else of the arrays, though they may fit."""
    network = description.get("network") or {}
    ours, theirs = getattr(algorithm, "network", None), builder(network) if network.get("name") in NETWORKS else None
    if theirs not in (None, ours):
        raise LudusError(f"its network is {theirs}, but it is to be loaded into {ours}")


def scaling_in(saved: dict[str, Any]) -> Scaling:
    """Return how what was saved scales numbers; ValueError if it says something else."""
    name = saved.get("scaling", "bytes")  # what was saved before there was a choice says nothing
    if name not in get_args(Scaling):
        raise ValueError(f"scaling={name!r}")
    return name


def _check_size(spec: Spec, network: Tree, arrays: dict[str, np.ndarray]) -> None:
    """Refuse a header that describes more than the file holds, before a network of that size is built."""
    held = sum(array.size for array in arrays.values())
    sizes = [size for size in jax.tree.leaves(network) if isinstance(size, int) and not isinstance(size, bool)]
    observed, acted = ([vector_size(x) for _, x in leaves(s)] for s in (spec.observation_space, spec.action_space))
    encoder = network.get("encoder") if isinstance(network, dict) else None
    if encoder not in (None, {"name": "none"}) and max(observed) <= MOST_NUMBERS:
        observed = layer_sizes(spec.observation_space)
    sizes += observed + acted
    if not all(0 < size <= held for size in sizes) or not 0 < spec.num_envs <= MOST_ENVS:
        raise ValueError(f"it describes layers of {max(sizes)}, and the file holds {held} numbers in all")


def _read(file: Path, format: str, noun: str) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise LudusError(f"{file}: no such {noun} file")
    try:
        with _safetensors(file) as plain, safe_open(plain, framework="numpy") as handle:
            header = handle.metadata() or {}
            arrays = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, ValueError, SafetensorError) as error:
        raise LudusError(f"{file}: not a readable {noun} file ({error})") from error
    if header.get("format") != format:
        raise LudusError(f"{file}: format {header.get('format')!r} is not {format!r}")
    _check(file, header, arrays, noun)
    return header, arrays


def _check(file: Path, header: dict[str, str], arrays: dict[str, np.ndarray], noun: str) -> None:
    """Refuse a file whose checksum is wrong or was removed; say so if it is so old that it never had one."""
    told = header.pop("sha256", None)
    if told is None and "scaling" not in header:
        _log.warning("%s: has no SHA-256, as no %s file of the first versions: damage would not be noticed", file, noun)
    elif told is None:
        raise LudusError(f"{file}: its SHA-256 was removed, so nothing tells whether it is what was written")
    elif told != checksum(header, arrays):
        raise LudusError(f"{file}: is damaged (its SHA-256 is not what it says)")


@contextlib.contextmanager
def _safetensors(file: Path) -> Generator[Path]:
    """Give the file itself, or for a while what a PyTorch file of ours encloses."""
    with file.open("rb") as handle:
        is_archive = handle.read(len(ARCHIVE)) == ARCHIVE
    if not is_archive:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="ludus-") as scratch:
        (plain := Path(scratch) / ENCLOSED).write_bytes(_enclosed(file))
        yield plain


def _enclosed(file: Path) -> bytes:
    """Return the safetensors file in an archive; a ValueError says that there is none. Nothing else of it is read."""
    try:
        with zipfile.ZipFile(file) as archive:
            found = [part for part in archive.infolist() if part.filename.rpartition("/")[2] == ENCLOSED]
            if len(found) == 1 and found[0].compress_type == zipfile.ZIP_STORED:
                return archive.read(found[0])
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from error
    raise ValueError("a PyTorch file, but not one that ludus wrote: those alone hold a whole policy or critic")


def checksum(header: dict[str, str], arrays: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of everything in a file but itself."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _named_arrays(state: Tree) -> dict[str, np.ndarray]:
    """Return the leaves by path; the parameters of a network have the module's own names."""
    network, arrays = getattr(state, "network", None), {}
    names = iter(network.names if isinstance(network, Network) else ())
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        is_parameter = isinstance(network, Network) and name.startswith(PARAMETERS)
        arrays[PARAMETERS + next(names) if is_parameter else name] = np.array(leaf, order="C")
    return arrays


def _filled(blank: Tree, arrays: dict[str, np.ndarray], file: Path, hint: str) -> Any:
    expected = _named_arrays(blank)
    if expected.keys() != arrays.keys():
        difference = sorted(expected.keys() ^ arrays.keys())
        raise LudusError(f"{file}: holds other arrays than this network has (first: {difference[0]}){hint}")
    for name, array in expected.items():
        if array.shape != arrays[name].shape or array.dtype != arrays[name].dtype:
            raise LudusError(
                f"{file}: {name} is {arrays[name].dtype}{list(arrays[name].shape)}, "
                f"but the network has {array.dtype}{list(array.shape)}"
            )
        if not np.isfinite(arrays[name]).all():
            raise LudusError(f"{file}: {name} holds a NaN or an infinity")
    return jax.device_put(jax.tree.unflatten(jax.tree.structure(blank), [arrays[name] for name in expected]))
