"""Verbs that copy runs to a storage and back: `push` and `pull`."""

from pathlib import Path

from ludus.cli.arguments import Parser, add_key_file, newest_run
from ludus.types import LudusError


def push(words: list[str]) -> int:
    """Bring the copy of a run up to date."""
    parser = Parser(
        prog="ludus push",
        description="Bring the copy of a run at its storage up to date, after an outage, or because it was not copied "
        "while it trained. What arrived before is not sent again, and nothing counts as arrived before its hash was "
        "compared.",
        epilog="example: ludus push runs/pendulum s3://bucket/runs",
    )
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="run folder (default: the newest in runs/)")
    parser.add_argument("url", metavar="URL", nargs="?", help="the place (default: storage.url of the run)")
    parser.add_argument("--take-over", action="store_true", help="go on with a copy that another folder has written")
    add_key_file(parser)
    given = parser.parse_args(words)
    from dataclasses import replace

    from ludus.runs.folder import read_config
    from ludus.runs.storage.following import push
    from ludus.runs.storage.options import StorageOptions
    from ludus.runtime import files

    run = given.run or newest_run()
    files.refuse_links(run)
    kept = read_config(run).get("storage") or {}
    try:
        options = replace(StorageOptions(**kept), key_file=given.key_file)
    except TypeError as error:
        raise LudusError(f"{run}: its config.yaml is damaged (storage: {error})") from error
    options = replace(options, url=given.url) if given.url else options
    if options.url is None:
        raise LudusError(f"{run}: was not copied anywhere; ludus push {run} URL says where to")
    print(push(run, options, given.take_over))
    return 0


def pull(words: list[str]) -> int:
    """Restore a run from its copy."""
    parser = Parser(
        prog="ludus pull",
        description="Restore a run from its copy, on this machine or another one. Every file is compared with the "
        "hash that was written down when it was copied; there is no folder unless all of them are right.",
        epilog="example: ludus pull gdrive://Folder/pendulum --into runs/pendulum",
    )
    parser.add_argument(
        "url", metavar="URL", help="the copy, as in gdrive://Folder/NAME, s3://bucket/prefix/NAME, a folder"
    )
    parser.add_argument("--into", metavar="DIR", type=Path, help="a new folder (default: runs/NAME)")
    add_key_file(parser)
    given = parser.parse_args(words)
    from ludus.runs.storage.restore import name_in, pull

    into = given.into or Path("runs") / name_in(given.url)
    print(f"{into}: {pull(given.url, into, given.key_file):,} files, each compared by its hash")
    return 0
