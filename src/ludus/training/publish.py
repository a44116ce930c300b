"""From a run's policies to MLflow's models: each finished run has one, and a converged run is registered.

Among the versions of a name, the alias `champion` points at the one that has beaten all before it, and `challenger`
at the latest that has not.
"""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.algorithms.policy import FINAL, Policy, load_policy
from ludus.export.mlflow_model import CONFIG, POLICY, write_model
from ludus.runs.folder import CONFIG as RUN_CONFIG
from ludus.runs.folder import read_settings
from ludus.runs.trackers.mlflow.names import default_experiment
from ludus.runs.trackers.mlflow.registry import CHALLENGER, CHAMPION, Registry, Version
from ludus.runs.trackers.mlflow.sender import Sender
from ludus.runs.trackers.mlflow.store import Store, StoreError
from ludus.training.checkpoint_writer import BEST, POLICIES
from ludus.training.promotion import compare
from ludus.types import LudusError

FINAL_MODEL, REGISTERED = "final_model", "registered_model"
PARTS = "artifacts"
"""The folder of a model that holds its files."""
DIGEST, GATE = "ludus.policy_sha256", "ludus.gate"


def publish(sender: Sender, progress: Callable[[], None]) -> str | None:
    """Send the policy of a finished run as a model, and register it if the run converged; return what to tell."""
    kind = "figure" if (sender.config.get("checkpoint") or {}).get("best_by") else "evaluation"
    final, best = sender.run / FINAL, sender.run / POLICIES / f"{BEST[kind]}.safetensors"
    if sender.identity.get("status") != "finished" or not final.is_file():
        return None
    progress()
    _upload(sender, final, FINAL_MODEL)
    if not sender.identity.get("converged"):
        return None
    progress()
    return _register(sender, best if best.is_file() else final, progress)


def fetch(address: str, runs: Path) -> tuple[Policy, dict[str, Any]]:
    """Return the policy of a registered model and its configuration; nothing from the store is executed."""
    registry = Registry(Store(runs))
    return _fetch(registry, registry.find(address))


def model_name(config: dict[str, Any]) -> str:
    """Return the name that a run's policy is registered under."""
    return (config.get("tracking") or {}).get("registered_model") or f"{default_experiment(config)}-model"


def _upload(sender: Sender, file: Path, place: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ludus-model-") as scratch:
        folder = Path(scratch) / "model"
        with sender.store.asking():
            write_model(file, sender.run / RUN_CONFIG, folder, sender.cursor.run, place)
        sender.store.upload_folder(sender.cursor.run, folder, place)


def _register(sender: Sender, file: Path, progress: Callable[[], None]) -> str:
    """Register a policy, once, and let it through the gate or not."""
    registry, name, run = Registry(sender.store), model_name(sender.config), sender.cursor.run
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    mine = [version for version in registry.versions(name) if version.tags.get(DIGEST) == digest]
    version = next((version for version in mine if version.run == run), None)
    if version is None:
        place = f"{REGISTERED}/{digest[:12]}"  # a version must stay as it is, though the run go on
        _upload(sender, file, place)
        version = registry.register(name, run, f"runs:/{run}/{place}", {DIGEST: digest})
    if GATE not in version.tags:
        progress()
        alias, reason = _gate(registry, version, load_policy(file), sender.config)
        registry.point(alias, version)
        if alias == CHAMPION and (other := registry.at(name, CHALLENGER)) and other.number == version.number:
            registry.lift(CHALLENGER, name)
        registry.note(version, f"{alias}: {reason}", {GATE: f"{alias}: {reason}"})
        return f"MLflow: {version} is {alias}: {reason}"
    return f"MLflow: {version} is registered"


def _gate(registry: Registry, version: Version, policy: Policy, config: dict[str, Any]) -> tuple[str, str]:
    """Return the alias that a new version deserves, and why."""
    champion = registry.at(version.name, CHAMPION)
    if champion is None or champion.number == version.number:
        return CHAMPION, "there was none before"
    try:
        verdict = compare(policy, _fetch(registry, champion)[0], config)
    except StoreError:
        raise
    except LudusError as error:
        return CHALLENGER, f"it could not be compared with the champion ({error})"
    return CHAMPION if verdict.is_better else CHALLENGER, str(verdict)


def _fetch(registry: Registry, version: Version) -> tuple[Policy, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="ludus-model-") as scratch:
        folder = Path(scratch)
        try:
            file = registry.fetch(version, f"{PARTS}/{POLICY}", folder)
            registry.fetch(version, f"{PARTS}/{CONFIG}", folder)
        except StoreError as error:
            raise StoreError(f"{version}: is no policy of ludus, or cannot be fetched ({error})", False) from None
        return load_policy(file), read_settings(folder / CONFIG)
