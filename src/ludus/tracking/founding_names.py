"""What the founding documents call the figures of a journal, for callbacks and for MLflow."""

TRAIN_KEYS: dict[str, tuple[str, ...]] = {
    "episode_return_mean": ("avg_reward", "episode_reward"),
    "episode_length_mean": ("avg_length", "episode_length"),
    "steps": ("total_steps",),
    "updates": ("num_updates",),
    "policy_loss": (),
    "value_loss": (),
    "total_loss": (),
    "entropy": ("entropy_loss",),
    "approx_kl": ("kl_divergence",),
    "clip_fraction": ("clipfrac",),
    "gradient_norm": ("grad_norm",),
}
"""Figures of a `train` row, and what the documents call them besides. `entropy_loss` is minus the entropy."""


def founding_names(figures: dict[str, float]) -> dict[str, float]:
    """Return the figures of a `train` row that the documents call otherwise, under those names."""
    return translated(figures, TRAIN_KEYS) | ({"entropy_loss": -figures["entropy"]} if "entropy" in figures else {})


def translated(figures: dict[str, float], table: dict[str, tuple[str, ...]]) -> dict[str, float]:
    """Return figures under the other names that a table has for them."""
    return {other: figures[name] for name, others in table.items() if name in figures for other in others}
