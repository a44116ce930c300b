"""Users' own configuration files: `--config FILE`, and the groups of `--config-dir FOLDER`, chosen by name like ours.

A file becomes keys and values, which are laid over our presets and under the words of the command line. Nothing in it
can execute anything: it is YAML of numbers, texts, lists and dicts, as the config.yaml of a run is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ludus.runtime import files
from ludus.types import LudusError

MOST_BYTES = 1 << 20
CHOICES: dict[str, str] = {
    name.replace("/", "."): name for name in ("algorithm", "algorithm/network", "algorithm/network/encoder")
}
"""Parts of a file whose `name`, or the name that stands in their place, is a choice; and the key of that."""


class Given(NamedTuple):
    """A value that the user gave, in a file or in a word, and how to speak of it."""

    value: Any
    where: str


Layer = dict[str, Given]
"""Values by the keys that the command line has for them."""


@dataclass(frozen=True)
class OwnFiles:
    """The files and the folder that a user named."""

    paths: Sequence[Path] = ()
    folder: Path | None = None
    used: list[str] = field(default_factory=list)
    """The files that were read so far."""

    def __post_init__(self) -> None:
        """Refuse a folder that is none."""
        if self.folder is not None and not self.folder.is_dir():
            raise LudusError(f"--config-dir={self.folder}: is not a folder")

    def given(self) -> Layer:
        """Return what the files say; of two that say different things, the later."""
        return {key: given for path in self.paths for key, given in self._read(path).items()}

    def names(self, group: str) -> list[str]:
        """Return what the folder has to choose from, such as `big` for algorithm/network/big.yaml."""
        if self.folder is None:
            return []
        root = self.folder / group
        names = (path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))
        below = tuple(
            f"{other.removeprefix(group)[1:]}/" for other in CHOICES.values() if other.startswith(f"{group}/")
        )
        return sorted(name for name in names if not name.startswith(below))

    def option(self, group: str, name: Any) -> Layer:
        """Return what a file of the folder says that was chosen by name; nothing if there is none."""
        if self.folder is None or name not in self.names(group):
            return {}
        return self._read(self.folder / group / f"{name}.yaml", "" if group == "preset" else group.replace("/", "."))

    def _read(self, path: Path, group: str = "") -> Layer:
        try:
            text = files.read(path, MOST_BYTES).decode()
            if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader)):
                raise ValueError("it has aliases, which a few lines can make endless")
            # By OmegaConf, as our presets are: 1e-3 is a number.
            content = OmegaConf.to_container(OmegaConf.create(text or "{}"))
        except OSError as error:
            raise LudusError(f"{path}: cannot be read ({error.strerror or error})") from error
        except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise LudusError(f"{path}: is not readable YAML ({reason})") from error
        if not isinstance(content, dict):
            raise LudusError(f"{path}: must hold keys and values, as in total_steps: 20_000")
        self.used.append(str(path))
        return {key: Given(value, f"{path}: {key}={value}") for key, value in _flat(content, group)}


def _flat(content: dict[Any, Any], group: str) -> Iterator[tuple[str, Any]]:
    """Yield keys as the command line writes them, and their values."""
    for name, value in content.items():
        key = f"{group}.{name}" if group else str(name)
        if key == "algorithm.optimizer" and value is None:
            continue  # in the config.yaml of a run: there was none of the user's own
        if isinstance(value, dict):
            yield from _flat(value, key)
        elif key in CHOICES or (name == "name" and group in CHOICES):
            yield CHOICES[key if key in CHOICES else group], value
        else:
            yield key, value
