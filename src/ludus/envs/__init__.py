"""Environments: the JAX and host protocols, the registry, native environments, adapters."""
