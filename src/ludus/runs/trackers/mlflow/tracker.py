"""MLflow as a tracker: a process beside training sends the run."""

import importlib.util
from collections.abc import Callable

from ludus.runs.folder import RunFolder
from ludus.runs.trackers.companion import Companion
from ludus.types import LudusError

MODULE = "ludus.training.tracking_process"


class MLflowTracker:
    """Sends a run to MLflow, beside training."""

    def __init__(self, say: Callable[[str], None]):
        """Make sure that MLflow is there."""
        if importlib.util.find_spec("mlflow") is None:
            raise LudusError('tracking.mlflow=true: MLflow is not installed; pip install "ludus[mlflow]"')
        self.companion = Companion("MLflow", MODULE, "ludus track", say)

    def begin(self, folder: RunFolder) -> None:
        """Start the process."""
        self.companion.begin(folder)

    def wake(self) -> None:
        """Hear what it has to say."""
        self.companion.wake()

    def end(self) -> None:
        """Wait for the rest, as long as there are signs of life."""
        self.companion.end()
