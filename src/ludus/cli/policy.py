"""Verbs that let a trained policy act: `evaluate`, `record`, `video` and `export`."""

import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.cli.arguments import Parser, add_allow_code, add_run, need_mlflow, newest_run
from ludus.runs.strict_json import strict
from ludus.runtime import user_code
from ludus.types import LudusError

if TYPE_CHECKING:
    from argparse import Namespace

    from ludus.algorithms.policy import Policy
    from ludus.envs.base import AnyEnv
    from ludus.runtime.demonstrations import Demonstrations


def evaluate(words: list[str]) -> int:
    """Play a policy, or rules in its place, and say what they reached."""
    parser = Parser(prog="ludus evaluate", description="Play episodes with the final policy of a run.")
    where = "run folder (default: the newest in runs/), or a model that MLflow knows, such as models:/NAME@champion"
    parser.add_argument("words", metavar="RUN", nargs="*", help=f"{where}; with --driver, env=ID and options instead")
    add_allow_code(parser)
    parser.add_argument(
        "--episodes",
        type=_episodes,
        default=100,
        metavar="N",
        help="how many (default: 100), or all held-out scenarios",
    )
    parser.add_argument("--scenarios", metavar="FOLDER", help="play the evaluation scenarios of another set")
    parser.add_argument(
        "--variant", metavar="NAMES", help="of the environment, side by side: for driving none,noisy,adversarial"
    )
    parser.add_argument(
        "--driver", metavar="NAMES", help="rules of the environment that act instead: agent,expert,idm,constant,random"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides how each begins (default: 0)")
    parser.add_argument("--stochastic", action="store_true", help="sample actions from the policy (default: greedy)")
    parser.add_argument(
        "--lookahead", type=int, metavar="N", help="before each step, play N rollouts from every action; take the best"
    )
    parser.add_argument("--lookahead-depth", type=int, metavar="D", help="steps of these rollouts (default: 10)")
    parser.add_argument("--env", metavar="ID", help="play elsewhere than where it was trained")
    parser.add_argument("--checkpoint", metavar="STEP", help="latest, best or a step, instead of the final policy")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table of the episodes")
    parser.add_argument("--film", type=int, default=0, metavar="N", help="film the N worst of them, in RUN/videos")
    given = parser.parse_intermixed_args(words)
    _check_film(given)
    from ludus.cli import evaluations
    from ludus.training.evaluation import evaluate as evaluated
    from ludus.training.run_config import environment_in

    policy, config = _player(given.words, given.driver, given.checkpoint)
    config = config if given.env is None else _elsewhere(given.env, config)
    options = dict(config.get("env_options") or {})
    if given.scenarios not in (None, "eval"):
        options["scenarios"] = given.scenarios
    drivers = [None] if given.driver is None else given.driver.split(",")
    variants = [None] if given.variant is None else given.variant.split(",")
    made: dict[str, evaluations.DriverScore] = {}
    more = _lookahead(given)
    for driver, variant in itertools.product(drivers, variants):
        own = {name: value for name, value in (("driver", driver), ("variant", variant)) if value is not None}
        env = environment_in({**config, "env_options": {**options, **own}}, "use ludus.evaluate in Python, or --env")
        name = evaluations.label(driver, variant, len(variants) == 1)
        with contextlib.closing(env):
            plays = policy or evaluations.idle(env)
            evaluation = evaluated(plays, env, given.episodes, given.seed, deterministic=not given.stochastic, **more)
            kinds = env.kinds_held_out(len(evaluation.returns))
            made[name] = evaluations.DriverScore(
                evaluation, kinds, driver or "", (variant or "") if len(variants) > 1 else ""
            )
            _film(given, name, env, evaluations.worst(made[name], given.film))
    if given.csv is not None:
        evaluations.write_csv(given.csv, made)
    print(json.dumps(strict(evaluations.summary(made))) if given.json else evaluations.text(made))
    return 0


def _check_film(given: "Namespace") -> None:
    """Refuse to film where there is no run to keep a film in, or where the film would show something else."""
    if given.film < 0:
        raise LudusError(f"--film={given.film}: must be at least 0")
    runs = [word for word in given.words if "=" not in word and not word.startswith("models:")]
    if given.film and len(runs) != len(given.words):
        raise LudusError(f"--film={given.film}: films are kept in a run folder; name a RUN")
    for name in ("stochastic", "lookahead", "driver"):
        if given.film and getattr(given, name):
            raise LudusError(f"--film={given.film}: films the greedy policy; leave out --{name}")


def _film(given: "Namespace", name: str, env: "AnyEnv", numbers: list[int]) -> None:
    """Film episodes of an evaluation; `name` says which evaluation it was."""
    if not numbers:
        return
    from ludus.training.film import film_episodes, headless
    from ludus.training.policy_choice import choose

    headless()
    run = Path(given.words[0]) if given.words else newest_run()
    chosen = choose(run, given.checkpoint)
    first = "-".join([chosen.label, *name.split()])
    wanted = {f"{first}-worst{place + 1}": number for place, number in enumerate(numbers)}
    film_episodes(run, chosen, env, wanted, seed=given.seed, say=lambda text: print(text, file=sys.stderr))


def _lookahead(given: "Namespace") -> dict[str, Any]:
    """Return what `ludus.evaluate` is told of looking ahead; the critic is that of the policy's own moment."""
    if given.lookahead is None:
        if given.lookahead_depth is not None:
            raise LudusError(f"--lookahead-depth={given.lookahead_depth}: goes with --lookahead N")
        return {}
    if given.driver is not None:
        raise LudusError(f"--lookahead={given.lookahead}: rules do not look ahead; leave out --driver")
    run, told = Path(given.words[0]) if given.words else newest_run(), {"lookahead": given.lookahead}
    if given.lookahead_depth is not None:
        told["lookahead_depth"] = given.lookahead_depth
    if str(run).startswith("models:"):
        return told
    from ludus.training.policy_choice import choose

    return {**told, "critic": choose(run, given.checkpoint).critic}


def _player(words: list[str], driver: str | None, checkpoint: str | None) -> tuple["Policy | None", dict[str, Any]]:
    """Return the policy of a run and its configuration; no policy where rules act and words name an environment."""
    runs = [word for word in words if "=" not in word]
    options = [word for word in words if "=" in word]
    if len(runs) > 1:
        raise LudusError(f"{runs[1]}: one RUN at a time")
    if not options:
        return _policy(Path(runs[0]) if runs else newest_run(), checkpoint)
    if runs or driver is None or "agent" in driver.split(","):
        raise LudusError(
            f"{options[0]}: goes with --driver and a rule in place of a RUN, as in --driver idm env=driving"
        )
    if wrong := [word for word in options if not word.startswith(("env=", "env_options."))]:
        raise LudusError(f"{wrong[0]}: without a RUN there are env=ID and env_options.key=value alone")
    from ludus.training.config import compose

    config = compose(options)
    return None, {"env": config.env, "env_options": dict(config.env_options), "num_envs": 16}


def record(words: list[str]) -> int:
    """Let a policy play, and write all that it did as demonstrations."""
    parser = Parser(
        prog="ludus record",
        description="Let a policy of a run play whole episodes, and write them as demonstrations to learn from.",
    )
    parser.add_argument(
        "words", metavar="RUN", nargs="*", help="run folder (default: the newest in runs/); with --driver, env=driving"
    )
    parser.add_argument("--driver", metavar="NAME", help="a rule that demonstrates instead: expert, idm, ...")
    add_allow_code(parser)
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a new file *.safetensors, or a new folder of several"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides how each begins (default: 0)")
    parser.add_argument("--stochastic", action="store_true", help="sample actions from the policy (default: greedy)")
    parser.add_argument(
        "--random-actions", type=float, default=0.0, metavar="SHARE", help="so many actions by chance (default: 0)"
    )
    parser.add_argument("--env", metavar="ID", help="play elsewhere than where it was trained")
    parser.add_argument("--checkpoint", metavar="STEP", help="latest, best or a step, instead of the final policy")
    given = parser.parse_intermixed_args(words)
    if given.out.exists():
        raise LudusError(f"--out={given.out}: exists already; choose another name, or remove it")
    from ludus.runtime.demonstration_file import write_demonstrations
    from ludus.training.record_demonstrations import record_demonstrations
    from ludus.training.run_config import environment_in

    policy, config = _player(given.words, given.driver, given.checkpoint)
    if policy is not None and given.driver is not None:
        raise LudusError(f"--driver={given.driver}: demonstrates in place of a RUN, as in --driver expert env=driving")
    config = config if given.env is None else _elsewhere(given.env, config)
    config = {**config, "num_envs": max(1, min(config.get("num_envs") or 1, given.episodes))}
    env = environment_in(config, "use ludus.record_demonstrations in Python, or give --env")
    with contextlib.closing(env):
        demonstrations = (
            _by_rule(env, given)
            if policy is None
            else record_demonstrations(
                policy,
                env,
                given.episodes,
                given.seed,
                deterministic=not given.stochastic,
                random_actions=given.random_actions,
            )
        )
    write_demonstrations(demonstrations, given.out)
    print(f"{given.out}: {demonstrations}")
    return 0


def _by_rule(env: "AnyEnv", given: "Namespace") -> "Demonstrations":
    """Let a rule of the driving environment play."""
    from ludus.envs.scenarios.driving.demonstrations import demonstrated
    from ludus.envs.scenarios.driving.environment import Driving

    simulator = getattr(env, "env", None)
    if not isinstance(simulator, Driving) or getattr(env, "source", None) is not None:
        raise LudusError(f"--driver={given.driver}: {env.id} has no rules that drive; env=driving has")
    return demonstrated(simulator, given.driver, given.episodes, given.seed)


def _elsewhere(env: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of another environment that was typed, and so is the user's own command."""
    from ludus.envs.registry import code_in

    for name in code_in(env, ()):
        user_code.imported(name)
    return {"env": env, "num_envs": config.get("num_envs"), "env_wrappers": config.get("env_wrappers")}


def _episodes(word: str) -> int | str:
    """Read a number of episodes, or "all"."""
    if word != "all" and not word.lstrip("-").isdecimal():
        raise LudusError(f"--episodes={word}: must be an integer, or all")
    return word if word == "all" else int(word)


def video(words: list[str]) -> int:
    """Film a policy."""
    parser = Parser(
        prog="ludus video",
        description="Let a policy of a run play and film it: RUN/videos has the film (mp4) and what was drawn on each "
        "of its frames (jsonl), RUN/episodes the episode itself.",
    )
    add_run(parser)
    add_allow_code(parser)
    parser.add_argument(
        "--checkpoint", metavar="C", help="latest, best, a step or a name in RUN/policies (default: the final policy)"
    )
    parser.add_argument("--episodes", type=int, default=1, metavar="N", help="film so many (default: 1)")
    parser.add_argument("--extremes", action="store_true", help="film the worst and the best of N instead (100)")
    parser.add_argument("--grid", action="store_true", help="film the policies of the run side by side, as it learned")
    parser.add_argument("--gif", action="store_true", help="make a gif besides")
    parser.add_argument("--seed", type=int, metavar="N", help="decides how each begins (default: the run's own)")
    given = parser.parse_args(words)
    if given.episodes < 1:
        raise LudusError(f"--episodes={given.episodes}: must be at least 1")
    if given.seed is not None and given.seed < 0:
        raise LudusError(f"--seed={given.seed}: must be at least 0")
    from ludus.training.film import film, film_grid, headless

    headless()
    run = given.run or newest_run()
    if given.grid:
        film_grid(run, seed=given.seed, gif=given.gif)
    else:
        many = 100 if given.episodes == 1 else given.episodes
        among = many if given.extremes else 0
        film(run, given.checkpoint, episodes=given.episodes, among=among, seed=given.seed, gif=given.gif)
    return 0


def export(words: list[str]) -> int:
    """Write a policy for another runtime."""
    parser = Parser(prog="ludus export", description="Write a policy of a run for another runtime, and prove it there.")
    add_run(parser)
    add_allow_code(parser)
    parser.add_argument("--format", required=True, metavar="F", help="safetensors, torch, onnx or stablehlo")
    parser.add_argument("--policy", default="final", metavar="P", help="final, best or a file of RUN/policies")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where to (default: RUN/exports/POLICY)")
    given = parser.parse_args(words)
    from ludus.algorithms.critic import FINAL as CRITIC
    from ludus.algorithms.critic import load_critic
    from ludus.algorithms.policy import BEST, BEST_BY, FINAL, load_policy
    from ludus.export import export_policy
    from ludus.runs.folder import read_config
    from ludus.training.run_config import environment_in

    run = given.run or newest_run()
    config = read_config(run)
    best = BEST_BY if (config.get("checkpoint") or {}).get("best_by") else BEST
    file = run / {"final": FINAL, "best": best}.get(given.policy, Path("policies") / given.policy)
    policy = load_policy(file)
    critic = load_critic(run) if given.policy == "final" and (run / CRITIC).exists() else None
    try:
        env = environment_in(config, "use ludus.export in Python")
    except LudusError as error:  # an environment that is not here shall not keep a policy from travelling
        print(f"ludus: compared on observations drawn from their space, since {error}", file=sys.stderr)
        env = None
    folder = given.output or run / "exports" / file.stem
    with contextlib.closing(env) if env else contextlib.nullcontext():
        print(export_policy(policy, given.format, folder, critic=critic, env=env, name=file.stem))
    return 0


def _policy(run: Path, checkpoint: str | None) -> tuple["Policy", dict[str, Any]]:
    """Return the final policy of a run, that of a checkpoint or a registered one, and its configuration."""
    from ludus.algorithms.policy import FINAL, load_policy
    from ludus.runs.checkpoint.store import Checkpoints
    from ludus.runs.folder import read_config

    if str(run).startswith("models:"):
        if checkpoint is not None:
            raise LudusError(f"--checkpoint={checkpoint}: {run} is a registered model, which has none")
        need_mlflow(str(run))
        from ludus.training.publish import fetch

        return fetch(str(run), Path("runs"))
    config = read_config(run)
    if checkpoint is None:
        if not (run / FINAL).exists() and Checkpoints(run).steps():
            raise LudusError(
                f"{run}: has no final policy, since it is running or was killed; --checkpoint latest plays what it had "
                "learnt by its last checkpoint"
            )
        return load_policy(run), config
    from ludus.training.past_policies import policy_at

    return policy_at(run, checkpoint), config
