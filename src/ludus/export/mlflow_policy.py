"""What MLflow runs to serve a policy: this file travels inside the model, and the policy beside it is data alone.

Observations come as an array with one row for each, or as a dict of such arrays by the names of the space's parts;
actions go back likewise. A policy with a memory answers every row as the first of its episode.
"""

from typing import Any

import mlflow
import numpy as np

import ludus
from ludus.spaces import flatten, leaves, unflatten


class PolicyModel(mlflow.pyfunc.PythonModel):
    """A policy behind MLflow's interface for models."""

    def load_context(self, context: Any) -> None:
        """Load the policy; nothing that is loaded can execute anything."""
        self.policy = ludus.load_policy(context.artifacts["policy"])

    # Without type hints: MLflow would take them for a signature.
    def predict(self, context, model_input, params=None):
        """Return the greedy action for each observation."""
        spec = self.policy.spec
        names = [name for name, _ in leaves(spec.observation_space)]
        parts = [model_input] if names == [""] else [model_input[name] for name in names]
        actions = self.policy(unflatten(spec.observation_space, [np.asarray(part) for part in parts]))
        found = zip(leaves(spec.action_space), flatten(spec.action_space, actions), strict=True)
        named = {name: np.asarray(action) for (name, _), action in found}
        return named.get("", named)


mlflow.models.set_model(PolicyModel())
