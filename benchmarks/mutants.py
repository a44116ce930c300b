"""Row A7 of the guarantees: known mistakes put into the learning code one at a time; the tests must notice each.

    .venv/bin/python benchmarks/mutants.py                     # all of them; goes on where it was interrupted
    .venv/bin/python benchmarks/mutants.py --only sac.py --jobs 2

Every mutant (`mistakes.py` lists them) is one replacement of text in a private copy of the tree. It is killed if the
tests that should notice it fail, and survives if they pass; without it they must pass. Results are kept in `--results`
under a hash of what they depend on, so a changed file or test is run again. Prints a line for each to stderr and one
JSON object to stdout. Exit code 1: fewer than 95 % were killed. Exit code 2: the text of a mutant is not in its file
any more, or its tests did not run.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mistakes import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src") / "ludus"
TIMEOUT = 900
PATIENCE = 5
"""A mistake may make a loop endless: tests that take so many times as long as without it, and a minute, have failed."""
GOAL = 0.95


def main() -> int:
    """Run every mutant that has no result yet; print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="those whose file or mistake contains this")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried at the same time")
    parser.add_argument("--results", type=Path, default=ROOT / ".pytest_cache" / "mutants.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ludus-mutants-") as folder:
        tree = _copied(ROOT, Path(folder) / "unchanged")  # whoever works on the tree meanwhile is not in the way
        return _run_all(given, tree)


def _run_all(given: argparse.Namespace, tree: Path) -> int:
    chosen = [m for m in MUTANTS if given.only in m.file or given.only in m.mistake]
    if stale := [m for m in chosen if (tree / PACKAGE / m.file).read_text().count(m.old) != 1]:
        for mutant in stale:
            print(f"{mutant.file}: not there exactly once: {mutant.old!r} ({mutant.mistake})", file=sys.stderr)
        return 2
    results = json.loads(given.results.read_text()) if given.results.exists() else {}

    def outcome(name: str, mutant: Mutant | None, tests: tuple[str, ...]) -> str:
        key = _key(tree, mutant, tests)
        if key not in results:
            unchanged = results[_key(tree, None, tests)]["seconds"] if mutant else TIMEOUT
            results[key] = _trial(tree, mutant, tests, min(TIMEOUT, PATIENCE * unchanged + 60))
            given.results.parent.mkdir(parents=True, exist_ok=True)
            partial = given.results.with_suffix(".partial")
            partial.write_text(json.dumps(results))
            partial.replace(given.results)
        print(f"{results[key]['outcome']:<9} {results[key]['seconds']:>6} s  {name}", file=sys.stderr, flush=True)
        return results[key]["outcome"]

    selections = list(dict.fromkeys(m.tests for m in chosen))
    with ThreadPoolExecutor(given.jobs) as pool:
        unchanged = pool.map(lambda tests: outcome(f"unchanged: {' '.join(tests)}", None, tests), selections)
        baseline = dict(zip(selections, unchanged, strict=True))
        outcomes = list(pool.map(lambda m: outcome(f"{m.file}: {m.mistake}", m, m.tests), chosen))
    return _report(chosen, dict(zip(chosen, outcomes, strict=True)), baseline)


def _report(chosen: list[Mutant], outcomes: dict[Mutant, str], baseline: dict[tuple[str, ...], str]) -> int:
    survivors = [m for m in chosen if outcomes[m] == "survived"]
    broken = [m for m in chosen if outcomes[m] == "error" or baseline[m.tests] != "survived"]
    killed = len(chosen) - len(survivors) - len(broken)
    figures = {
        "mutants": len(chosen),
        "killed": killed,
        "share_killed": round(killed / max(len(chosen), 1), 4),
        "survived": [f"{m.file}: {m.mistake}" for m in survivors],
        "did_not_run": [f"{m.file}: {m.mistake}" for m in broken],
    }
    print(json.dumps(figures, indent=2))
    return 2 if broken else int(killed < GOAL * len(chosen))


def _trial(unchanged: Path, mutant: Mutant | None, tests: tuple[str, ...], limit: float) -> dict[str, Any]:
    """Run the tests in a copy of the tree with one mistake in it."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ludus-mutant-") as folder:
        tree = _copied(unchanged, Path(folder) / "tree")
        if mutant:
            path = tree / PACKAGE / mutant.file
            path.write_text(path.read_text().replace(mutant.old, mutant.new))
        cache = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "xla-mutants")}
        path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**cache, **os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            printed, code = process.communicate(timeout=limit)[0].decode(), process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            printed, code = process.communicate()[0].decode(), 1
    # 1: tests failed; 2 with a mistake: it cannot even be imported, so nobody could miss it.
    outcome = {0: "survived", 1: "killed", 2: "killed" if mutant else "error"}.get(code, "error")
    return {"outcome": outcome, "seconds": round(time.perf_counter() - began, 1), "end": printed[-600:]}


def _copied(source: Path, target: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("src", "tests", "docs", "benchmarks"):
        shutil.copytree(source / name, target / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "Makefile", "CONTRIBUTING.md"):
        shutil.copy(source / name, target / name)
    return target


def _key(tree: Path, mutant: Mutant | None, tests: tuple[str, ...]) -> str:
    """Hash of what a result depends on: the mistake, its file and its tests; without one, the whole package."""
    package = [tree / PACKAGE / mutant.file] if mutant else sorted((tree / PACKAGE).rglob("*.py"))
    selected = _with_helpers([tree / test.partition("::")[0] for test in tests], tree / "tests" / "support")
    parts = [*(mutant or ())[:4], *tests, *(path.read_text() for path in (*package, *selected))]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _with_helpers(files: list[Path], folder: Path) -> list[Path]:
    """Return the files and every helper module of the tests that they import, or that those do."""
    found = list(dict.fromkeys(files))
    for path in found:  # which grows on the way
        names = re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        helpers = [folder / f"{name}.py" for name in names]
        found.extend(helper for helper in helpers if helper.exists() and helper not in found)
    return found


if __name__ == "__main__":
    sys.exit(main())
