"""Run folders that have lost something, and what `ludus resume` says of them."""

import json
from pathlib import Path

from resume_runs import iterations

import ludus
from ludus.cli.main import main


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path, capsys, *words: str) -> str:
    """Resume from the command line; return the one line that is said, after which nothing has changed."""
    before = content(folder)
    assert main(["resume", str(folder), *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ludus: ")]
    assert len(said) == 1 and str(folder) in said[0]
    assert content(folder) == before
    return said[0]


def resumed(folder: Path, n: int | None = None, start="latest", case="ppo jax", **changes) -> None:
    """Resume and train, without the evaluation at the end."""
    budget = {} if n is None else {"total_steps": iterations(case, n)}
    made = ludus.Trainer.resume(folder, start, verbose=False, **budget, **changes)
    made.final_episodes = 0
    made.train()


def note(folder: Path, **changes) -> None:
    """Write something else into run.json; None removes it."""
    identity = {**json.loads((folder / "run.json").read_text()), **changes}
    identity = {name: value for name, value in identity.items() if value != "absent"}
    (folder / "run.json").write_text(json.dumps(identity))
