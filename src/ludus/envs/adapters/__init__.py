"""Adapters: one file for each library of environments, imported only when it is asked for."""
