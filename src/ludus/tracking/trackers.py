"""The trackers that a run is configured to have."""

from collections.abc import Callable

from ludus.tracking.tracker import Tracker, TrackingOptions


def trackers(options: TrackingOptions, say: Callable[[str], None]) -> list[Tracker]:
    """Return the trackers that the options ask for; LudusError if one of them cannot work here.

    Args:
        options: which.
        say: prints one line for the user.
    """
    made: list[Tracker] = []
    if options.tensorboard:
        from ludus.tracking.tensorboard import TensorBoardTracker

        made.append(TensorBoardTracker(say))
    if options.mlflow:
        from ludus.tracking.mlflow.tracker import MLflowTracker

        made.append(MLflowTracker(say))
    return made
