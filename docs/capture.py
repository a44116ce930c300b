"""Draw README's picture: run two commands in a terminal of their own and save what a person sees as SVG.

.venv/bin/python docs/capture.py docs/en/images/train.svg
"""

import contextlib
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 110
BIN = Path(sys.executable).parent
COMMANDS = [
    "ludus train env=CartPole-v1 run_dir=runs/cartpole",
    "ludus evaluate runs/cartpole --episodes 1000 --seed 1",
]


def in_a_terminal(command: str, folder: str) -> str:
    """Run a command in a pseudo-terminal and return everything it wrote."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    process = subprocess.Popen(command.split(), cwd=folder, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # raised when the program has closed its end
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert process.wait() == 0, shown.decode()
    return shown.decode()


def frames(output: str) -> tuple[str, list[str]]:
    """Return the last state of the progress bar and the lines that stay."""
    pieces = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece).strip() for piece in re.split(r"[\r\n]+", output)]
    bars = [piece for piece in pieces if "━" in piece and "steps/s" in piece]
    lines = [piece for piece in pieces if piece and "━" not in piece]
    return (bars[-1] if bars else ""), lines


def main() -> None:
    """Run the commands and draw them."""
    console = Console(width=WIDTH, record=True, file=open(os.devnull, "w"), color_system="truecolor")  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
            bar, lines = frames(in_a_terminal(command, folder))
            if bar:
                lines.insert(len(lines) - 4, bar)
            for line in lines:
                console.print(Text(line, style="cyan" if line == bar else ""), soft_wrap=False)
    svg = console.export_svg(title="ludus")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # fonts would be fetched from the network
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    Path(sys.argv[1]).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
