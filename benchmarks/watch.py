"""Measures the live page with many runs and a long history: time to paint, size of updates, memory and processor.

    python benchmarks/watch.py --runs 100 --rows 1000000

makes run folders, a tenth of which go on growing as if they trained, serves them in a process of its own with
`ludus watch`, opens the page in Chromium and prints one JSON object. Needs Playwright and a Chromium.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import yaml

from ludus.report.live.stream import END as END_OF_UPDATE

END = END_OF_UPDATE.encode().splitlines(keepends=True)[0]
LIMITS = {"first_paint_seconds": 2.0, "largest_update_bytes": 100_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of all journals together")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long updates are measured")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        size = make_runs(runs, given.runs, given.rows // given.runs)
        command = [sys.executable, "-m", "ludus", "watch", str(runs), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = re.findall(r"http\S+", server.stdout.readline())[0]
            try:
                figures = measure(address, runs, given.seconds)
                figures["server_memory_mib"] = round(resident(server.pid) / 2**20)
                figures["server_processor_seconds"] = processor_seconds(server.pid)
            finally:
                server.terminate()
    figures |= {"runs": given.runs, "rows": given.rows, "journal_bytes": size, "processors": os.cpu_count()}
    figures["within_limits"] = all(figures[name] < limit for name, limit in LIMITS.items())
    print(json.dumps(figures, indent=2))


def make_runs(folder: Path, count: int, rows: int) -> int:
    """Write run folders; return the bytes of their journals."""
    size = 0
    for i in range(count):
        run = folder / f"CartPole-v1-ppo-seed{i}"
        run.mkdir(parents=True)
        config = {"env": "jax:CartPole-v1", "seed": i, "algorithm": {"name": "ppo", "gamma": 0.99}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        (run / "run.json").write_text(json.dumps({"id": f"{i:032x}", "status": "interrupted", "devices": ["cpu:0"]}))
        (run / "log.txt").write_text("".join(f"iteration {j}\n" for j in range(2000)))
        text = "".join(lines(np.random.default_rng(i), 0, rows))
        (run / "metrics.jsonl").write_text(text)
        size += len(text)
    return size


def lines(random: np.random.Generator, first: int, count: int) -> list[str]:
    """Return rows as a run of PPO writes them, with an evaluation every ten."""
    noise, made = random.random((count, 10)), []
    for i, drawn in zip(range(first + 1, first + count + 1), noise.tolist(), strict=True):
        mean = 500 * i / (i + 2000) * (0.9 + 0.1 * drawn[0])
        row = {"seq": i, "kind": "train", "iteration": i, "steps": 1024 * i, "episodes": 10 * i, "updates": 64 * i}
        row |= {"episode_return_mean": mean, "episode_return_min": 0.8 * mean, "episode_return_max": 1.1 * mean}
        names = ("approx_kl", "clip_fraction", "entropy", "explained_variance", "gradient_norm", "policy_loss")
        row |= {"episode_length_mean": mean, **dict(zip(names, drawn[1:], strict=False))}
        row |= {"value_loss": 10 * drawn[7], "learning_rate": 3e-4, "elapsed_seconds": i / 50, "steps_per_second": 5e4}
        if i % 10 == 0:
            row = {"seq": i, "kind": "evaluation", "iteration": i, "steps": 1024 * i, "episodes": 10 * i}
            row |= {"eval_return_mean": mean, "eval_return_std": 20.0, "eval_episodes": 100, "eval_length_mean": mean}
        made.append(json.dumps(row) + "\n")
    return made


def measure(address: str, runs: Path, seconds: float) -> dict:
    """Open the page, open a run that grows, and measure the updates."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        started = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("#runs a")
        painted = time.perf_counter() - started
        page.wait_for_selector("#runs li:nth-child(100) a" if len(list(runs.iterdir())) >= 100 else "#runs a")
        listed = time.perf_counter() - started
        link = page.locator("#runs a").first.get_attribute("href") or ""
        name = page.locator("#runs a").first.get_attribute("title") or ""
        started = time.perf_counter()
        page.locator("#runs a").first.click()
        page.wait_for_selector("#panel-returns .main-svg")
        drawn = time.perf_counter() - started
        browser.close()
    ended = threading.Event()
    writer = threading.Thread(target=grow, args=(runs, name, ended))
    writer.start()
    try:
        updates = update_sizes(address, link.removeprefix("#"), seconds)
    finally:
        ended.set()
        writer.join()
    return {
        "first_paint_seconds": round(painted, 3),
        "whole_list_seconds": round(listed, 3),
        "curves_of_a_run_seconds": round(drawn, 3),
        "updates": len(updates),
        "largest_update_bytes": max(updates),
        "median_update_bytes": round(statistics.median(updates)),
    }


def grow(runs: Path, chosen: str, ended: threading.Event) -> None:
    """Append to a tenth of the journals, the chosen one among them, five times a second."""
    folders = [runs / chosen, *sorted(runs.iterdir())[::10]]
    reached = dict.fromkeys(folders, 20_000)
    random = np.random.default_rng(0)
    while not ended.wait(0.2):
        for folder in reached:
            with (folder / "metrics.jsonl").open("a") as file:
                file.writelines(lines(random, reached[folder], 10))
            reached[folder] += 10


def update_sizes(address: str, run: str, seconds: float) -> list[int]:
    """Read the events of a run as a browser does; return the bytes of each update."""
    page, token = address.split("#token=")
    asked = urllib.request.Request(f"{page}events?run={run}", headers={"X-Ludus-Token": token})
    sizes, size, started = [], 0, time.perf_counter()
    with urllib.request.urlopen(asked) as stream:
        while time.perf_counter() - started < seconds:
            line = stream.readline()
            size += len(line)
            if line == END:
                sizes.append(size)
                size = 0
    return sizes


def resident(pid: int) -> int:
    """Return the memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
