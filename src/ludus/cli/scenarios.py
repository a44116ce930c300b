"""The verb `scenarios`: sets of scenarios are made, described, divided and looked into."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.cli.arguments import Parser, add_allow_code
from ludus.types import LudusError

if TYPE_CHECKING:
    from ludus.envs.scenarios.shards import Arrays, Manifest

USAGE = """\
usage: ludus scenarios make NAME --count N --seed N --out FOLDER [env_options.key=value ...]
       ludus scenarios read FOLDER --out FOLDER [env_options.key=value ...]
       ludus scenarios info FOLDER
       ludus scenarios split FOLDER --evaluation SHARE --out FOLDER
       ludus scenarios show FOLDER [NUMBER] [--split evaluation]

Sets of scenarios for environments whose every episode is played in one: training draws from its training scenarios
(ludus train env=NAME env_options.scenarios=FOLDER), evaluation plays its evaluation scenarios in their order.

  make    generate scenarios of an environment from a seed: training ones, and others for evaluation
  read    recorded traffic, tracks.csv and lanes.csv, as training scenarios of driving
  info    what a set holds; every file is read and checked
  split   divide a set that has training scenarios alone: whole templates are held out
  show    the numbers of one scenario

examples:
  ludus scenarios make CartPole-v1 env_options.randomize.half_length=uniform:0.3:0.8 --count 1000 --seed 0 --out poles
  ludus train env=CartPole-v1 env_options.randomize.half_length=uniform:0.3:0.8 env_options.scenarios=poles
"""
ACTIONS = ("make", "read", "info", "split", "show")


def scenarios(words: list[str]) -> int:
    """Do one of its actions."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    action, *rest = words
    if action not in ACTIONS:
        raise LudusError(f"scenarios {action}: no such action; there are {', '.join(ACTIONS)}")
    return {"make": _make, "read": _read, "info": _info, "split": _split, "show": _show}[action](rest)


def _make(words: list[str]) -> int:
    parser = Parser(prog="ludus scenarios make", description="Generate scenarios of an environment from a seed.")
    parser.add_argument("words", nargs="+", metavar="NAME", help="as in env=NAME; and env_options.key=value")
    parser.add_argument("--count", type=int, required=True, metavar="N", help="scenarios for training")
    parser.add_argument("--eval-count", type=int, metavar="N", help="for evaluation (default: a fifth of that)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides all of them (default: 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    add_allow_code(parser)
    given = parser.parse_intermixed_args(words)
    held_out = max(1, given.count // 5) if given.eval_count is None else given.eval_count
    for name, value, least in (("count", given.count, 0), ("eval-count", held_out, 0), ("seed", given.seed, 0)):
        if value < least:
            raise LudusError(f"--{name}={value}: must be at least {least}")
    from ludus.envs.scenarios.base import ScenarioEnvironment
    from ludus.envs.scenarios.making import made_by, make_set

    env, id, options = _environment(given.words)
    if not isinstance(env, ScenarioEnvironment):
        raise LudusError(
            f"{id}: draws no scenarios; give a range to draw from, such as env_options.randomize.gravity=uniform:5:15"
        )
    made = made_by(env, id, options, given.seed)
    print(_told(given.out, make_set(env, made, given.out, {"training": given.count, "evaluation": held_out})))
    return 0


def _read(words: list[str]) -> int:
    parser = Parser(prog="ludus scenarios read", description="Make scenarios of driving from recorded traffic.")
    parser.add_argument("words", nargs="+", metavar="FOLDER", help="of tracks.csv and lanes.csv; and env_options")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    given = parser.parse_intermixed_args(words)
    folder, *options = sorted(given.words, key=lambda word: "=" in word)
    from ludus.envs.scenarios.driving.recorded_tracks import read_recorded
    from ludus.envs.scenarios.making import made_by, write_set

    env, id, about = _environment(["driving", *options])
    read, left_out = read_recorded(folder, env)
    for name, reason in left_out.items():
        print(f"{name}: left out, since {reason}", file=sys.stderr)
    print(_told(given.out, write_set(env, made_by(env, id, about, None), given.out, {"training": [read]})))
    return 0


def _environment(words: list[str]) -> tuple[Any, str, dict[str, Any]]:
    """Return the environment that words name, its id and its options."""
    from ludus.envs.registry import make_env
    from ludus.training.config import compose

    name, *options = sorted(words, key=lambda word: "=" in word)
    if wrong := [word for word in options if not word.startswith("env_options.")]:
        raise LudusError(f"{wrong[0]}: scenarios are made with env_options.key=value alone")
    config = compose([f"env={name.removeprefix('env=')}", *options])
    batch = make_env(config.env, 1, **config.env_options)
    return getattr(batch, "env", batch), batch.id, dict(config.env_options)


def _info(words: list[str]) -> int:
    parser = Parser(prog="ludus scenarios info", description="Say what a set holds; every file is read and checked.")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(words)
    import numpy as np

    from ludus.envs.scenarios.shards import TEMPLATE, read_manifest, read_shard

    manifest, sha256 = read_manifest(given.folder)
    templates: dict[str, dict[str, int]] = {}
    bad: dict[str, int] = {}
    for shard in manifest.shards:
        arrays = read_shard(given.folder, manifest, shard)
        whole = np.array([all(np.isfinite(x[i]).all() for x in arrays.values()) for i in range(shard.scenarios)])
        bad[shard.split] = bad.get(shard.split, 0) + int((~whole).sum())
        of = templates.setdefault(shard.split, {})
        for number, count in zip(*np.unique(arrays[TEMPLATE], return_counts=True), strict=True):
            name = manifest.names[number] if 0 <= number < len(manifest.names) else str(number)
            of[name] = of.get(name, 0) + int(count)
    if given.json:
        about = {"environment": manifest.environment, "seed": manifest.seed, "options": dict(manifest.options)}
        splits = {
            split: {
                "scenarios": manifest.count(split),
                "digest": manifest.digests.get(split),
                "templates": templates.get(split, {}),
                "not_finite": bad.get(split, 0),
                "skipped_when_made": manifest.skipped.get(split, 0),
            }
            for split in ("training", "evaluation")
        }
        print(json.dumps({**about, "sha256": sha256, **splits}, indent=2))
    else:
        print(_told(given.folder, manifest, templates, bad))
    return 0


def _split(words: list[str]) -> int:
    parser = Parser(
        prog="ludus scenarios split",
        description="Divide the training scenarios of a set into training and evaluation, as a new set: whole "
        "templates are held out, or single scenarios where all are of one template.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--evaluation", type=float, default=0.2, metavar="SHARE", help="held out (default: 0.2)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides which (default: 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    given = parser.parse_args(words)
    if given.seed < 0:
        raise LudusError(f"--seed={given.seed}: must be at least 0")
    from ludus.envs.scenarios.dividing import divide

    manifest, how = divide(given.folder, given.out, given.evaluation, given.seed)
    print(f"{_told(given.out, manifest)}\nheld out: {how}")
    return 0


def _show(words: list[str]) -> int:
    parser = Parser(prog="ludus scenarios show", description="Show the numbers of one scenario.")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("number", metavar="NUMBER", type=int, nargs="?", default=0, help="in its split (default: 0)")
    parser.add_argument("--split", default="training", choices=("training", "evaluation"), help="default: training")
    given = parser.parse_args(words)
    from ludus.envs.scenarios.shards import SCENARIO, TEMPLATE, read_manifest, read_shard

    manifest, _ = read_manifest(given.folder)
    count = manifest.count(given.split)
    if not 0 <= given.number < count:
        raise LudusError(f"{given.folder}: has {count} scenarios for {given.split}, and no number {given.number}")
    shards = manifest.of(given.split)
    index, row = divmod(given.number, shards[0].scenarios)
    arrays = read_shard(given.folder, manifest, shards[index])
    number = int(arrays[TEMPLATE][row])
    name = f", {manifest.names[number]}" if 0 <= number < len(manifest.names) else ""
    print(f"{manifest.environment}, {given.split} scenario {given.number}{name}")
    print("\n".join(_table({key.removeprefix(SCENARIO): x for key, x in _row(arrays, row).items()})))
    return 0


def _row(arrays: "Arrays", row: int) -> dict[str, Any]:
    return {name: array[row] for name, array in sorted(arrays.items())}


def _table(values: dict[str, Any]) -> list[str]:
    """Return a line for each array: name, type and shape, and its numbers, or their range if they are many."""
    lines = []
    for name, value in values.items():
        many = f"{value.min():g} to {value.max():g}" if value.size > 8 and value.dtype != bool else ""
        shape = f"{value.dtype}{list(value.shape)}" if value.shape else str(value.dtype)
        lines.append((name, shape, many or " ".join(f"{x:g}" for x in value.ravel()[:8].tolist())))
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    return [f"  {name:<{widths[0]}}  {shape:<{widths[1]}}  {shown}" for name, shape, shown in lines]


def _told(
    folder: Path,
    manifest: "Manifest",
    templates: dict[str, dict[str, int]] | None = None,
    bad: dict[str, int] | None = None,
) -> str:
    size = sum(shard.size for shard in manifest.shards)
    seed = "" if manifest.seed is None else f", seed {manifest.seed}"
    lines = [f"{folder}: {manifest.environment}{seed}, {len(manifest.shards)} files, {size / 1e6:,.1f} MB"]
    for split in [shard.split for shard in manifest.shards if shard.number == 0]:
        digest = manifest.digests.get(split)
        of = (templates or {}).get(split, {})
        kinds = f" ({', '.join(f'{name} {count:,}' for name, count in of.items())})" if manifest.names and of else ""
        lines.append(f"  {split}: {manifest.count(split):,} scenarios{kinds}, sha256 {digest}")
        if made := manifest.skipped.get(split):
            lines.append(f"    {made:,} more could not be used and were left out")
        if found := (bad or {}).get(split):
            lines.append(f"    {found:,} of them hold a NaN or an infinity and are skipped where they are drawn")
    return "\n".join(lines)
