"""A policy as an MLflow model: a folder with the policy file, the code that serves it, and its signature."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ludus import __version__
from ludus.algorithms.policy import load_policy
from ludus.spaces import Box, Leaf, Space, leaves
from ludus.types import Tree

POLICY, CONFIG = "policy.safetensors", "config.yaml"
CODE = Path(__file__).with_name("mlflow_policy.py")


def write_model(file: Path, config: Path, folder: Path, run: str, place: str) -> None:
    """Write the model of a policy file into a new folder.

    Args:
        file: the policy.
        config: the configuration of its training.
        folder: the folder to write.
        run: the MLflow run that will hold the model.
        place: the model's folder in that run.
    """
    import mlflow
    from mlflow.models import Model, ModelSignature

    spec = load_policy(file).spec
    signature = ModelSignature(inputs=_schema(spec.observation_space), outputs=_schema(spec.action_space))
    with tempfile.TemporaryDirectory(prefix="ludus-model-") as scratch:
        parts = {"policy": Path(scratch) / POLICY, "config": Path(scratch) / CONFIG}
        shutil.copyfile(file, parts["policy"])
        shutil.copyfile(config, parts["config"])
        mlflow.pyfunc.save_model(
            str(folder),
            mlflow_model=Model(artifact_path=place, run_id=run),
            python_model=str(CODE),
            artifacts={name: str(path) for name, path in parts.items()},
            signature=signature,
            input_example=_example(spec.observation_space),
            pip_requirements=[f"ludus=={__version__}", f"mlflow=={mlflow.__version__}"],
        )


def _schema(space: Space) -> Any:
    from mlflow.types import Schema, TensorSpec

    return Schema([TensorSpec(np.dtype(leaf.dtype), (-1, *leaf.shape), name or None) for name, leaf in leaves(space)])


def _example(space: Space) -> Tree:
    """Return one observation, as near to zero as the space allows."""
    arrays = {name: _nearest_to_zero(leaf)[None] for name, leaf in leaves(space)}
    return arrays.get("", arrays)


def _nearest_to_zero(leaf: Leaf) -> np.ndarray:
    if isinstance(leaf, Box):
        return np.clip(np.zeros(leaf.shape, leaf.dtype), *leaf.bounds).astype(leaf.dtype)
    return np.broadcast_to(np.asarray(getattr(leaf, "start", 0), leaf.dtype), leaf.shape).copy()
