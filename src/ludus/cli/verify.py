"""Verbs that look into a run without touching it: `verify-resume` and `debug`."""

from ludus.cli.arguments import Parser, add_allow_code, add_run, newest_run
from ludus.types import LudusError


def verify_resume(words: list[str]) -> int:
    """Prove that a run resumes exactly."""
    parser = Parser(
        prog="ludus verify-resume",
        description="Train 2n iterations with a run's own configuration, and n with n more after a resume in a fresh "
        "process; print the hashes of both, and exit with 1 if they differ. The run itself is left alone.",
    )
    add_run(parser)
    add_allow_code(parser)
    parser.add_argument("--iterations", type=int, default=3, metavar="N", help="the n (default: 3)")
    given = parser.parse_args(words)
    if given.iterations < 1:
        raise LudusError(f"--iterations={given.iterations}: must be at least 1")
    from ludus.runs.folder import read_config
    from ludus.runtime import autotuning

    run = given.run or newest_run()
    config = read_config(run)
    autotuning.begin(config, bool(config.get("deterministic")))
    from ludus.training.verify import verify_resume

    comparison = verify_resume(run, given.iterations)
    print(comparison)
    return 0 if comparison.first_difference is None else 1


def debug(words: list[str]) -> int:
    """Find where a run's first NaN comes from."""
    parser = Parser(
        prog="ludus debug",
        description="Play a run again from a checkpoint, update by update, to its first NaN or infinity; name it and "
        "write the batch beside the run. The run itself is left alone.",
    )
    add_run(parser)
    add_allow_code(parser)
    parser.add_argument("--from", dest="start", default="latest", metavar="STEP", help="latest, best or a step")
    parser.add_argument("--iterations", type=int, default=1000, metavar="N", help="look at so many (default: 1000)")
    given = parser.parse_args(words)
    from ludus.training.verify import debug

    finding = debug(given.run or newest_run(), given.start, given.iterations)
    print(finding or f"no NaN or infinity in {given.iterations} iterations")
    return 0 if finding is None else 1
