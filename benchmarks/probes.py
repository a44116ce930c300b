"""Row A1 of the guarantees: an algorithm on every probe, with both collectors, over N seeds. Prints one JSON object.

.venv/bin/python benchmarks/probes.py --algorithm ppo --seeds 20
.venv/bin/python benchmarks/probes.py --algorithm sac --seeds 20
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import probe_runs
import sac_probe_runs

from ludus.envs.native.probes import PROBES

RUNS = {
    "ppo": (PROBES, probe_runs, lambda answer: answer["value_error"] > 0.02 or answer["right"] < 0.99),
    "sac": (sac_probe_runs.SAC_PROBES, sac_probe_runs, lambda answer: max(answer.values()) > 0.02),
}
"""For each algorithm its probes, the module that trains and checks, and which answers are off."""


def main() -> None:
    """Run every probe and count the answers that are off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=RUNS, default="ppo")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="probes whose name contains this, such as chain")
    given = parser.parse_args()
    probes, runs, is_off = RUNS[given.algorithm]
    started, failures, trials, worst = time.perf_counter(), [], 0, {}
    for name in (name for name in probes if given.only in name):
        for how in ("compiled", "host"):
            for seed in range(given.seeds):
                answer = runs.check(name, runs.train(name, seed, how))
                trials += 1
                worst = {key: max(worst.get(key, 0.0), x) for key, x in answer.items() if key.endswith("_error")}
                if is_off(answer):
                    failures.append({"probe": name, "collector": how, "seed": seed, **answer})
            print(f"{name} {how}: {len(failures)} failures in {trials} trials", file=sys.stderr, flush=True)
    figures = {"trials": trials, "failures": failures, "bound_95": 3 / max(trials, 1), "worst": worst}
    print(json.dumps(vars(given) | figures | {"seconds": round(time.perf_counter() - started, 1)}))


if __name__ == "__main__":
    main()
