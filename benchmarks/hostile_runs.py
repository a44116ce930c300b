"""Hostile run folders: each beside two healthy runs, shown to `runs`, `compare`, `report`, `track` and the live page.

    python benchmarks/hostile_runs.py 200

Nothing may hang, end in a traceback, or take more than 5 s of processor time or 1 GB; the healthy runs are shown, and
the bad one is named with what is wrong. What is finished is kept in a log and not done again. Prints one JSON object.
"""

import trials  # first: it makes the tests' helpers importable
from hostile_runs import trials as hostile_runs

if __name__ == "__main__":
    trials.go(__doc__, 200, hostile_runs)
