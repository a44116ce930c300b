"""Ask whether anything that ludus depends on has a known vulnerability. Prints one JSON object.

Example: `python benchmarks/audit.py`. Takes the versions pinned in requirements.txt, asks pip-audit from a virtual
environment of its own or, without it, the OSV database; if neither can be reached, it says so and exits with 2.
"""

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OSV = "https://api.osv.dev/v1/querybatch"


def pinned() -> list[tuple[str, str]]:
    """Return what is locked: names and versions."""
    return re.findall(r"^([A-Za-z0-9_.\-]+)==([^\s;\\]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)


def by_pip_audit() -> list[str]:
    """Return what pip-audit finds in the locked requirements."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit"]
        subprocess.run(install, check=True, capture_output=True, timeout=300)
        audit = [python, "-m", "pip_audit", "-r", ROOT / "requirements.txt", "--disable-pip", "-f", "json"]
        done = subprocess.run(audit, capture_output=True, text=True, timeout=300, check=False)
        found = json.loads(done.stdout)["dependencies"]
    return [f"{entry['name']} {entry['version']} {bad['id']}" for entry in found for bad in entry.get("vulns", [])]


def by_osv() -> list[str]:
    """Return what the OSV database knows of the locked requirements."""
    packages = pinned()
    queries = [{"package": {"name": n, "ecosystem": "PyPI"}, "version": v} for n, v in packages]
    request = urllib.request.Request(OSV, json.dumps({"queries": queries}).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        results: list[dict[str, Any]] = json.load(answer)["results"]
    pairs = zip(packages, results, strict=True)
    return [f"{name} {version} {bad['id']}" for (name, version), known in pairs for bad in known.get("vulns", [])]


def main() -> int:
    """Ask one after the other."""
    reasons = {}
    for how in (by_pip_audit, by_osv):
        try:
            found = how()
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            reasons[how.__name__] = f"{type(error).__name__}: {error}"[:200]
            continue
        print(json.dumps({"asked": how.__name__, "packages": len(pinned()), "vulnerabilities": found}))
        return int(bool(found))
    print(json.dumps({"asked": None, "packages": len(pinned()), "not_reachable": reasons}))
    return 2


if __name__ == "__main__":
    sys.exit(main())
