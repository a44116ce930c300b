"""The code that MLflow runs to serve a policy. It is copied into the model; the policy beside it is data alone.

Observations come as an array with one row for each, or as a dict of such arrays by the names of the space's parts;
actions are returned in the same form. A policy with a memory takes every row as the first of its episode.
"""

import mlflow
import numpy as np

import ludus
from ludus.spaces import flatten, leaves, unflatten


class PolicyModel(mlflow.pyfunc.PythonModel):
    """A policy with MLflow's interface for models."""

    def load_context(self, context: "mlflow.pyfunc.PythonModelContext") -> None:
        """Load the policy, from a file that cannot execute code."""
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
