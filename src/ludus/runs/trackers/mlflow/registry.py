"""MLflow's registry of models: versions of a name, and aliases that point at one of them."""

import re
from pathlib import Path
from typing import NamedTuple

from ludus.runs.trackers.mlflow.store import Store
from ludus.types import LudusError

SCHEME = "models:/"
ADDRESS = re.compile(r"models:/(?P<name>[^/:@]+)(@(?P<alias>[\w-]+)|/(?P<version>\d+))")
CHAMPION, CHALLENGER = "champion", "challenger"


class Version(NamedTuple):
    """One version of a registered model."""

    name: str
    number: str
    source: str
    run: str
    tags: dict[str, str]

    def __str__(self) -> str:
        """Its address."""
        return f"{SCHEME}{self.name}/{self.number}"


class Registry:
    """The registry of a store."""

    def __init__(self, store: Store):
        """Ask nothing yet."""
        self.store = store

    def find(self, address: str) -> Version:
        """Return what an address such as models:/NAME@champion or models:/NAME/3 stands for."""
        match = ADDRESS.fullmatch(address)
        if match is None:
            raise LudusError(f"{address}: must be models:/NAME@ALIAS or models:/NAME/VERSION")
        if match["alias"]:
            found = self.at(match["name"], match["alias"])
        else:
            versions = [version for version in self.versions(match["name"]) if version.number == match["version"]]
            found = versions[0] if versions else None
        if found is None:
            raise LudusError(f"{address}: there is no such model at {self.store.name}")
        return found

    def versions(self, name: str) -> list[Version]:
        """Return all versions of a name."""
        with self.store.asking():
            found = self.store.client.search_model_versions(_named(name))
        return [_version(version) for version in found]

    def at(self, name: str, alias: str) -> Version | None:
        """Return the version that an alias points at."""
        with self.store.asking():
            if not self.store.client.search_model_versions(_named(name), max_results=1):
                return None
            model = self.store.client.get_registered_model(name)
            number = model.aliases.get(alias)
            return _version(self.store.client.get_model_version(name, number)) if number is not None else None

    def register(self, name: str, run: str, source: str, tags: dict[str, str]) -> Version:
        """Make a version of a name, which is made too if it is new."""
        client = self.store.client
        with self.store.asking():
            if not client.search_registered_models(_named(name)):
                client.create_registered_model(name)
            return _version(client.create_model_version(name, source, run, tags=tags))

    def point(self, alias: str, version: Version) -> None:
        """Let an alias point at a version, and at no other."""
        with self.store.asking():
            self.store.client.set_registered_model_alias(version.name, alias, version.number)

    def lift(self, alias: str, name: str) -> None:
        """Let an alias point at nothing."""
        with self.store.asking():
            self.store.client.delete_registered_model_alias(name, alias)

    def note(self, version: Version, description: str, tags: dict[str, str]) -> None:
        """Write down something about a version."""
        with self.store.asking():
            self.store.client.update_model_version(version.name, version.number, description)
            for key, value in tags.items():
                self.store.client.set_model_version_tag(version.name, version.number, key, value)

    def fetch(self, version: Version, file: str, folder: Path) -> Path:
        """Download a file of a version; nothing of it is looked at."""
        return self.store.download(f"{version.source.rstrip('/')}/{file}", folder)


def _named(name: str) -> str:
    quote = '"' if "'" in name else "'"
    return f"name={quote}{name}{quote}"


def _version(found: object) -> Version:
    names = ("name", "version", "source", "run_id", "tags")
    name, number, source, run, tags = (getattr(found, field) for field in names)
    return Version(name, str(number), source, run or "", dict(tags or {}))
