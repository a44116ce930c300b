"""Trackers and callbacks of a user's own, in a module that can be imported by name."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ludus


@dataclass(frozen=True)
class FileTracker:
    """Writes what it hears into a file, one line of JSON for each call or row."""

    file: str = "heard.jsonl"

    def begin(self, run: dict[str, Any]) -> None:
        self._write("begin", {name: run[name] for name in ("id", "rows", "continues")})

    def log(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._write("row", row)

    def end(self, result: dict[str, Any]) -> None:
        self._write("end", result["status"])

    def _write(self, what: str, value: Any) -> None:
        with Path(self.file).open("a") as file:
            file.write(json.dumps([what, value]) + "\n")


class Halving(ludus.Callback):
    """Halves the learning rate after every second iteration, and journals what it was."""

    def on_rollout(self, event):
        event.add("half/iteration", event.iteration / 2)
        if event.iteration % 2 == 0:
            event.set("learning_rate", event.hyperparameters["learning_rate"] / 2)


def until_third(metrics):
    """End the run after three iterations."""
    return metrics["iteration"] < 3


def heard(file: Path) -> list[tuple[str, Any]]:
    """Return what a FileTracker wrote."""
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()]
