"""Rows A2, A3 and A4 of the guarantees: ludus against float64 NumPy in random cases. Prints one JSON object.

    .venv/bin/python benchmarks/correctness.py --gae 10000 --distributions 10000 --updates 100

For each row: the number of cases, how many were beyond the bound, the largest error, and the upper 95 % bound on the
failure rate that no failure in N cases gives (3/N). The exit code is 1 if any failed. Oracles and cases are those of
the tests, which run a small share of them.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import cases
import jax
import numpy as np
import sac_cases

from ludus.runtime.compilation import compiler_options, jit

BOUND = 1e-5


def measure(
    name: str, n: int, error: Callable[[np.random.Generator], float], seed: int, bound: float = BOUND
) -> dict[str, Any]:
    """Run `n` cases, each from a generator of its own, so that any one of them can be run again."""
    began = time.perf_counter()
    errors = np.array([error(np.random.default_rng([seed, i])) for i in range(n)])
    failed = np.flatnonzero(~(errors <= bound))
    return {
        "name": name,
        "n": n,
        "failures": len(failed),
        "first_failures": failed[:5].tolist(),
        "max_error": float(errors.max()) if n else None,
        "bound": bound,
        "failure_rate_below": 3 / n if n and not len(failed) else None,
        "seconds": round(time.perf_counter() - began, 1),
    }


def ratio_error(case: str) -> Callable[[np.random.Generator], float]:
    return lambda rng: cases.ratio_error(case, rng)


def update_error(case: str) -> Callable[[np.random.Generator], float]:
    return lambda rng: max(cases.random_update_errors(case, rng).values())


def sac_update_error(case: str) -> Callable[[np.random.Generator], float]:
    return lambda rng: max(sac_cases.random_update_errors(case, rng).values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gae", type=int, default=10_000, help="random rollouts")
    parser.add_argument("--distributions", type=int, default=10_000, help="random cases of each distribution")
    parser.add_argument("--updates", type=int, default=100, help="random updates of each kind")
    parser.add_argument("--work", type=float, default=0.0, help="compile updates for so many floating-point operations")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    cases.update = jit(cases.told, compiler_options(given.work))
    sac_cases.update = jit(cases.told, compiler_options(given.work))
    rows = [
        measure("advantages, absolute error", given.gae, cases.advantage_error, given.seed),
        measure("categorical, relative error", given.distributions, cases.categorical_error, given.seed),
        measure("gaussian, relative error", given.distributions, cases.gaussian_error, given.seed),
        measure("squashed gaussian, relative error", given.distributions, sac_cases.tanh_gaussian_error, given.seed),
        *(measure(f"PPO update: {case}", given.updates, update_error(case), given.seed) for case in cases.UPDATE_CASES),
        *(
            measure(f"SAC update: {case}", given.updates, sac_update_error(case), given.seed)
            for case in sac_cases.UPDATE_CASES
        ),
        *(
            measure(f"first ratios: {case}", given.updates, ratio_error(case), given.seed, bound=1e-6)
            for case in cases.RATIO_CASES
        ),
    ]
    machine = {"jax": jax.__version__, "backend": jax.default_backend(), "machine": platform.machine()}
    print(json.dumps(machine | vars(given) | {"rows": rows}, indent=2))
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
