"""Copy a run to Google Drive through upload faults, one by one, and see that nothing is lost. Prints one JSON object.

Example: `python benchmarks/storage_faults.py 200 --log faults.jsonl`. Each fault strikes one request of one round of a
run that goes on meanwhile: a connection that is cut before or after the request was obeyed, 403, 429, 500 and 503, a
part of which half arrives, an object that is not what was sent, a token that expires, and a process that ends there.
Before every request that changes something the store is looked at as a restore would find it: all that its marker names
is there, and `latest` names a checkpoint of which every piece has its hash. Every fault is a line of the log; a script
that was stopped goes on where it was. At last the run is restored and compared byte by byte.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from copied_runs import SmallRun, check_copy, contents
from drive_server import Drive

from ludus.runs.storage import google_drive, restore
from ludus.runs.storage.base import StorageError
from ludus.runs.storage.copier import Copier
from ludus.runs.storage.google_drive import GoogleDrive

KINDS = (
    "cut", "is lost", "403", "429", "429 wait", "500", "503", "keeps half", "keeps other bytes", "token expires",
    "process ends",
)  # fmt: skip
URL = "gdrive://Folder/runs"


class Trial:
    """A server, a run that is copied to it, and the next fault."""

    def __init__(self, folder: Path, seed: int):
        """Copy the first checkpoint without a fault."""
        self.drive = Drive(self.plan)
        os.environ[google_drive.ENDPOINT] = self.drive.uri
        self.key = str(self.drive.token_file(folder / "token.json"))
        self.run = SmallRun(folder / "run", keep_last=3, seed=seed)
        self.kind: str | None = None
        self.left = self.looks = self.requests = 0
        self.has_ended = self.struck = False
        self.go_on()

    def plan(self, method: str, path: str) -> str | None:
        """Look at what is there, and let the fault strike when its turn has come."""
        self.requests += 1
        if method != "GET":
            self.look()
        if self.has_ended:
            return "cut"  # whoever asks is no longer there
        if self.kind == "keeps half" and not (method == "PUT" and "/session/" in path):
            return None
        if self.kind == "keeps other bytes" and "/upload/" not in path:
            return None
        self.left -= 1
        if self.kind is None or self.left != 0:
            return None
        kind, self.kind, self.struck = self.kind, None, True
        self.has_ended = kind == "process ends"
        return "is lost" if self.has_ended else kind

    def look(self) -> None:
        """Look at the store as a restore would find it."""
        there = {f"run/{path}": several[0] for path, several in self.drive.below("Folder/runs/run").items()}
        check_copy(there, "run")
        self.looks += 1

    def go_on(self) -> int:
        """Let the run go on and copy it, as often as it takes; return how often that was."""
        self.run.advance(rows=20)
        store, attempts, copier, troubles = None, 0, None, []
        while True:
            attempts += 1
            assert attempts < 20, f"it does not come to an end: {troubles[-3:]}"
            if store is None or self.has_ended:  # another process begins with what the run folder holds
                self.has_ended = False
                store = GoogleDrive(URL, self.key)
                copier = Copier(self.run.path, store, URL)
            try:
                while copier.advance():
                    pass
                self.look()
                store.close()
                return attempts
            except StorageError as error:
                troubles.append(str(error))

    def inject(self, number: int, dice: random.Random) -> dict:
        """Inject one fault; return a row for the log."""
        kind, self.struck = KINDS[number % len(KINDS)], False
        began, requests = time.monotonic(), self.requests
        rounds = 0
        while not self.struck and rounds < 10:
            self.kind, self.left = kind, dice.randint(1, 30)
            if dice.random() < 0.2:
                self.run.go_back()
            attempts = self.go_on()
            rounds += 1
        assert self.struck, kind
        duplicates = [path for path, several in self.drive.below("Folder/runs/run").items() if len(several) > 1]
        assert not duplicates, duplicates
        requests = self.requests - requests
        return {
            "fault": number, "kind": kind, "attempts": attempts, "requests": requests,
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip


def main() -> None:
    """Go through the faults that the log does not hold yet, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--log", type=Path, default=Path("storage_faults.jsonl"))
    given = parser.parse_args()
    google_drive.PART = 1 << 12  # so that files of a few kilobytes are sent in several parts
    done = [json.loads(line) for line in given.log.read_text().splitlines()] if given.log.exists() else []
    print(json.dumps(summary(done, given.count, given.log)))


def summary(done: list[dict], count: int, log: Path) -> dict:
    """Inject what is left, restore the run, and sum up."""
    with tempfile.TemporaryDirectory() as folder, log.open("a") as file:
        trial = Trial(Path(folder), seed=len(done))
        try:
            for number in range(len(done), count):
                done.append(trial.inject(number, random.Random(number)))
                print(json.dumps(done[-1]), file=file, flush=True)
            restore.pull(f"{URL}/run", Path(folder) / "back", trial.key)
            assert contents(Path(folder) / "back") == contents(trial.run.path)
        finally:
            trial.drive.close()
    return {
        "faults": len(done),
        "kinds": dict(Counter(row["kind"] for row in done)),
        "lost": 0,
        "looks at the store": trial.looks,
        "restored": "byte by byte",
        "seconds": round(sum(row["seconds"] for row in done), 1),
    }


if __name__ == "__main__":
    main()
