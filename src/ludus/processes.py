"""Child processes: every interpreter that ludus starts is started here, so that all of them obey one rule.

A child looks for modules where its parent does and nowhere else: it is given the parent's path explicitly, and `-P`
keeps the folder it happens to run in, where anybody may have left a file called like a library, out of it. It may
follow the names of users' own code that its parent follows (`own_code.py`).
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ludus import own_code


def start(words: Sequence[str], *, accelerator: bool = False, **options: Any) -> subprocess.Popen:
    """Start `python -P` with these words; without `accelerator` it computes on the CPU alone.

    `options` are those of `subprocess.Popen`.
    """
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, **own_code.for_children()}
    if not accelerator:
        environment["JAX_PLATFORMS"] = "cpu"
    return subprocess.Popen([sys.executable, "-P", *words], env=environment, **options)
