"""Checkpoints: their format on disk, the store of one run, and which of them are kept."""
