"""Row A1 of the guarantees: PPO on every probe, with both collectors, over N seeds. Prints one JSON object.

.venv/bin/python benchmarks/probes.py --seeds 20
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ludus.envs.probes import PROBES
from probe_runs import check, train


def main() -> None:
    """Run every probe and count the answers that are off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    started, failures, trials, worst = time.perf_counter(), [], 0, 0.0
    for name in PROBES:
        for how in ("compiled", "host"):
            for seed in range(seeds):
                answer = check(name, train(name, seed, how))
                trials, worst = trials + 1, max(worst, answer["value_error"])
                if answer["value_error"] > 0.02 or answer["right"] < 0.99:
                    failures.append({"probe": name, "collector": how, "seed": seed, **answer})
            print(f"{name} {how}: {len(failures)} failures in {trials} trials", file=sys.stderr, flush=True)
    figures = {"trials": trials, "failures": failures, "bound_95": 3 / trials, "worst_value_error": worst}
    print(json.dumps({**figures, "seconds": round(time.perf_counter() - started, 1)}))


if __name__ == "__main__":
    main()
