"""Environments of our own, as JAX functions."""
