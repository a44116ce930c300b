"""Training: the trainer and everything that it brings together."""
