"""Trackers show a run elsewhere: they read the journal, know how far they came, and training never waits for them."""

import re
from dataclasses import dataclass
from typing import Any, Protocol

from ludus.runs.folder import RunFolder
from ludus.runtime import own_parts
from ludus.types import LudusError

REGISTRY_NAME = re.compile(r"[^/:]+")
"""What a registered model can be called: MLflow addresses models as models:/NAME@alias."""


@dataclass(frozen=True)
class TrackingOptions:
    """The places where a run is shown besides its own folder."""

    tensorboard: bool = True
    """Write TensorBoard files into the run folder."""
    mlflow: bool = False
    """Send the run to MLflow: to MLFLOW_TRACKING_URI if that is set, else to runs/mlflow.db beside the run."""
    experiment: str | None = None
    """MLflow's experiment; null: ENV-ALGORITHM, such as cartpole-ppo."""
    registered_model: str | None = None
    """Name that a converged policy is registered under; null: ENV-ALGORITHM-model."""
    own: tuple[Any, ...] = ()
    """Trackers of your own, as in [my_module:MyTracker] or [{name: my_module:MyTracker, project: demo}]."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("tensorboard", "mlflow"):
            if not isinstance(getattr(self, name), bool):
                raise LudusError(f"tracking.{name}={getattr(self, name)}: must be true or false")
        for name in ("experiment", "registered_model"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise LudusError(f"tracking.{name}={value!r}: must be a name or null")
        if self.registered_model is not None and not REGISTRY_NAME.fullmatch(self.registered_model):
            raise LudusError(f"tracking.registered_model={self.registered_model}: must hold neither / nor :")
        object.__setattr__(self, "own", own_parts.check("tracking.own", self.own))


class Tracker(Protocol):
    """A consumer of the journal. Nothing it does may raise, or take time on the thread that calls it."""

    def begin(self, folder: RunFolder) -> None:
        """The run begins or goes on: configuration and identity are written, and the journal may hold rows already."""

    def wake(self) -> None:
        """The journal has new rows."""

    def end(self) -> None:
        """The run is over, its identity says how; wait, but not for long, until everything has arrived."""
