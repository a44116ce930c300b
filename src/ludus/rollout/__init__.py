"""Rollouts: policy and environment make transitions. `runner` has both ways to make them."""
