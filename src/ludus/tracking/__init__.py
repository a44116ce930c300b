"""Tracking: the run folder with its journal, which is the source of truth, and the console."""
