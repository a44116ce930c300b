"""Runs: the run folder, its journal and checkpoints, the console, and the trackers that show it elsewhere."""
