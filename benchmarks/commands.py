"""Type commands that make no sense, and read run folders that were damaged. Prints one JSON object.

Example: `python benchmarks/commands.py 10000`. Every command is a line of the log; a run that was stopped goes on. Each
must end with 0, 1 or 2, and with 2 in one line.
"""

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trials import go


def trials(start: int, stop: int) -> Iterator[dict[str, Any]]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    from fuzzed_commands import trial
    from resume_runs import run

    import ludus.export
    import ludus.training.evaluation
    import ludus.training.verify
    from ludus.cli.main import main
    from ludus.training.trainer import Trainer

    def refuse(*_: Any, **__: Any) -> Any:
        raise ludus.LudusError("this would go on for long")

    with tempfile.TemporaryDirectory() as folder:
        run("ppo jax", Path(folder) / "run", 2)
        for owner, name in (
            (Trainer, "train"), (ludus.training.verify, "_try_iteration"), (ludus.export, "export_policy"),
            (ludus.training.evaluation, "evaluate"),
        ):  # fmt: skip
            setattr(owner, name, refuse)
        os.chdir(folder)
        for number in range(start, stop):
            words, _ = trial(number, Path(folder) / "run", Path(folder))
            said, failure, code = io.StringIO(), None, None
            try:
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                    code = main(words)
            except SystemExit as error:
                code = error.code or 0
            except BaseException as error:
                failure = f"{type(error).__name__}: {error}"[:300]
            lines = [line for line in said.getvalue().splitlines() if line.startswith("ludus: ")]
            if failure is None and (code not in (0, 1, 2) or (code == 2 and len(lines) != 1)):
                failure = f"exit code {code}: {said.getvalue()[-200:]}"
            yield {"number": number, "kind": str(words[:1])[:40], "code": code, "failure": failure}


if __name__ == "__main__":
    go(__doc__, 10_000, trials)
