"""The settings of a run, whatever it trains: what `Trainer` and `ludus train` can be told, and config.yaml keeps."""

from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral
from typing import Any, Literal, get_args

from ludus.algorithms.base import Algorithm
from ludus.runs.recorder import SUCCESS_RULES, RecordOptions
from ludus.runs.storage.options import StorageOptions
from ludus.runs.trackers.base import TrackingOptions
from ludus.runtime import own_parts
from ludus.training import curriculum
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.distributed import mesh
from ludus.training.distributed.seats import HostOptions
from ludus.training.stopping import ConvergenceOptions
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
    "hosts": HostOptions,
    "storage": StorageOptions,
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
    init_from: str | None = None
    """Begin with the policy and critic of another run: its folder, or one of its policies/ (that policy alone)."""
    init_from_sha256: str | None = None
    """Refuse a policy file with another SHA-256; a run's configuration says which it began with."""
    hosts: HostOptions = field(default_factory=HostOptions)
    """The processes that train it together."""
    storage: StorageOptions = field(default_factory=StorageOptions)
    """Where the run is copied to while it trains."""
    curriculum: dict[str, Any] = field(default_factory=dict)
    """What leads parameters of the environment, as in curriculum.difficulty=linear:0:1."""
    callbacks: tuple[Any, ...] = ()
    """What hears how training goes and may change it, as in [my_module:MyCallback]."""
    devices: int | str = "auto"
    """Devices that the work is shared out to; auto: all accelerators where it is great enough, else one. A CPU can show
    itself as several."""
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
        mesh.check(self.devices)
        if self.loguru and not self.log_frequency:
            raise LudusError("loguru=true: is told as often as log_frequency says, which is 0: never")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise LudusError(f"{name}={getattr(self, name)}: must be one of {', '.join(choices)}")
        for name, kind in PARTS.items():
            if not isinstance(getattr(self, name), kind):
                raise LudusError(f"{name}={getattr(self, name)!r}: must be a ludus.{kind.__name__}")
        if self.init_from_sha256 is not None and self.init_from is None:
            raise LudusError(
                "init_from_sha256: is that of the policy to begin with, which is not given: give init_from"
            )
        object.__setattr__(self, "callbacks", own_parts.check("callbacks", self.callbacks))
        object.__setattr__(self, "curriculum", curriculum.read(self.curriculum))
        if self.convergence.rule in ("interval", "plateau") and not self.eval_frequency:
            raise LudusError(f"convergence.rule={self.convergence.rule}: needs evaluations (eval_frequency is 0)")


def plain(settings: Settings) -> dict[str, Any]:
    """Return settings as a configuration holds them: the user's own objects by their names."""
    tracking = settings.tracking
    values = asdict(replace(settings, tracking=replace(tracking, own=()), callbacks=()))
    values["tracking"]["own"] = own_parts.plain(tracking.own)
    values["storage"]["key_file"] = None  # it belongs to whoever trains, not to the run
    return {**values, "callbacks": own_parts.plain(settings.callbacks)}


def code_in(config: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of users' own code in a configuration, by the settings that hold them."""
    tracking = config.get("tracking")
    own = tracking.get("own") if isinstance(tracking, dict) else getattr(tracking, "own", ())
    return {"tracking.own": own_parts.code_in(own), "callbacks": own_parts.code_in(config.get("callbacks"))}


NAMES = tuple(f.name for f in fields(Settings))


def record_options(algorithm: Algorithm, settings: Settings) -> RecordOptions:
    """Return what is made of the numbers of a run with these settings."""
    return RecordOptions(
        success=settings.success,
        success_return=settings.success_return,
        log_frequency=settings.log_frequency,
        clip_epsilon=getattr(algorithm, "clip_epsilon", None),
        window=settings.recent_episodes_window,
        loguru=settings.loguru,
    )


def _check_at_least(low: int, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise LudusError(f"{name}={value}: must be an integer of at least {low}")
