"""Damage checkpoints, policies and critics, and read them. Prints one JSON object.

Example: `python benchmarks/fuzz.py 10500`: of every 21 files 20 are checkpoints, in which anything is damaged from a
bit to the meaning of a manifest whose hash is right, and one is a hostile policy or critic. Each must be refused in one
line that names the file, or be what was written. Every file is a line of the log; a run that was stopped goes on.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trials import go


def trials(start: int, stop: int) -> Iterator[dict[str, Any]]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from fuzzed_checkpoints import Victim, fuzz, hostile, peak_bytes
    from resume_runs import run

    from ludus.runs.checkpoint import format
    from ludus.training import state_arrays

    format.BLOCK_BYTES = state_arrays.BLOCK_BYTES = 512
    state_arrays.LONG_BYTES = 1024
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        victims = []
        for case in ("sac jax", "ppo gym"):
            run(case, scratch / case, 4)
            victims.append(Victim(scratch / case))
        files = [scratch / "ppo gym" / "policies" / f"{name}.safetensors" for name in ("final_actor", "final_critic")]
        most = peak_bytes() + 300e6
        for number in range(start, stop):
            if number % 21 == 20:
                row = hostile(number // 21, files[number // 21 % 2], scratch)
            else:
                row = fuzz(number, victims[number // 21 % 2], scratch)
            if peak_bytes() > most:
                row["failure"] = row["failure"] or "took more than 300 MB"
            yield row


if __name__ == "__main__":
    go(__doc__, 10_500, trials)
