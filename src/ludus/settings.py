"""How a run goes about it, whatever it trains: what `Trainer` and `ludus train` can be told, and config.yaml keeps."""

from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, Literal, get_args

from ludus.convergence import ConvergenceOptions
from ludus.keeping import CheckpointOptions
from ludus.tracking.records import SUCCESS_RULES
from ludus.tracking.tracker import TrackingOptions
from ludus.types import MAX_EPISODE_STEPS, LudusError

Collect = Literal["steps", "episodes", "trajectories"]
EvalBy = Literal["iterations", "episodes"]
CHOICES = {
    "collect": get_args(Collect),
    "eval_by": get_args(EvalBy),
    "success": SUCCESS_RULES,
    "permissions": ("private", "group"),
}
PARTS: dict[str, Any] = {
    "checkpoint": CheckpointOptions,
    "tracking": TrackingOptions,
    "convergence": ConvergenceOptions,
}
"""Settings that are groups of settings."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything about a run besides the algorithm, the environment, the budget and the folder."""

    seed: int = 0
    """The one number that all randomness comes from."""
    collect: str = "steps"
    """What an update learns from: steps (batch_size), episodes (one each), trajectories (whole, till batch_size)."""
    eval_frequency: int = 50
    """Iterations between evaluations; 0 evaluates at the end only."""
    eval_by: str = "iterations"
    """What eval_frequency counts: iterations or episodes."""
    eval_episodes: int = 10
    """Episodes of each such evaluation."""
    eval_episodes_final: int = 100
    """Episodes of the evaluation at the end; 0: none. A tenth of max_seconds is kept for it."""
    eval_max_steps: int = MAX_EPISODE_STEPS
    """Steps after which an episode of an evaluation is cut."""
    num_checkpoints: int = 3
    """Policies to keep from on the way, evenly spaced over total_steps."""
    record_episodes: bool = False
    """Journal the return and length of every single episode, not only means."""
    success: str = "auto"
    """What makes an episode a success: info (is_success), return (success_return), terminated; auto: info or return."""
    success_return: float | None = None
    """Return from which on an episode is a success; null: what the environment says is solved, if it does."""
    recent_episodes_window: int = 100
    """Episodes that recent figures are of: those of the block, and the return that the best policy is chosen by."""
    log_frequency: int = 0
    """Iterations between blocks of statistics; 0: none, only progress and evaluations are shown."""
    loguru: bool = False
    """Tell Loguru's sinks besides, as often as there are blocks."""
    health_frequency: int = 10
    """Iterations between rows with norms by layer and histograms; rows 1, 2, 4, ... before the first too; 0: none."""
    video_frequency: int = 0
    """Iterations between films of the policy at play, which another process makes; 0: none."""
    record_behaviour: bool = True
    """Record an episode, with its signals, of each policy that a run keeps, when it is over: the report shows them."""
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    """When the whole state is saved."""
    tracking: TrackingOptions = field(default_factory=TrackingOptions)
    """Where the run is shown besides its folder."""
    convergence: ConvergenceOptions = field(default_factory=ConvergenceOptions)
    """What ends the run before its budget is spent."""
    deterministic: bool = False
    """On a GPU: the same numbers from the seed alone, in any process, at two thirds of the speed or less."""
    permissions: str = "private"
    """Who may read the run folder: private (you alone) or group (its group too); the folders above are as they are."""
    verbose: bool = True
    """Show progress."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in (
            "seed",
            "eval_frequency",
            "eval_episodes_final",
            "num_checkpoints",
            "log_frequency",
            "health_frequency",
            "video_frequency",
        ):
            _check_at_least(0, name, getattr(self, name))
        for name in ("eval_episodes", "eval_max_steps", "recent_episodes_window"):
            _check_at_least(1, name, getattr(self, name))
        if self.loguru and not self.log_frequency:
            raise LudusError("loguru=true: is told as often as log_frequency says, which is 0: never")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise LudusError(f"{name}={getattr(self, name)}: must be one of {', '.join(choices)}")
        for name, kind in PARTS.items():
            if not isinstance(getattr(self, name), kind):
                raise LudusError(f"{name}={getattr(self, name)!r}: must be a ludus.{kind.__name__}")
        if self.convergence.rule in ("interval", "plateau") and not self.eval_frequency:
            raise LudusError(f"convergence.rule={self.convergence.rule}: needs evaluations (eval_frequency is 0)")


NAMES = tuple(f.name for f in fields(Settings))


def _check_at_least(low: int, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise LudusError(f"{name}={value}: must be an integer of at least {low}")
