"""`python -m pgps.embedded`: embedded clusters from the command line."""

from __future__ import annotations

import argparse
import sys

from pgps.embedded import EmbeddedCluster, list_clusters
from pgps.errors import EmbeddedError, PgpsError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except PgpsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pgps.embedded", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, does in (
        ("start", "make the cluster unless it exists, and start it"),
        ("stop", "stop it"),
        ("kill9", "kill the server and all its backends"),
        ("destroy", "stop it and remove everything of it"),
        ("dsn", "print a connection string for the superuser"),
    ):
        sub = commands.add_parser(command, help=does)
        sub.add_argument("name", nargs="?", default="default")
        if command == "start":
            sub.add_argument("--fast", action="store_true", default=None, help="no fsync: for tests")
            sub.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for it (default: 60)")
        if command in ("start", "dsn"):
            sub.add_argument("--dbname", default="postgres")
            sub.add_argument("--tcp", action="store_true", help="over 127.0.0.1 with a passfile")
    commands.add_parser("ls", help="list the clusters")
    return parser


def _run(options: argparse.Namespace) -> None:
    if options.command == "ls":
        for one in list_clusters():
            print(f"{one.name}\t{one.state}\t{one.port or '-'}\t{one.directory}")
        return
    cluster = EmbeddedCluster(options.name, fast=getattr(options, "fast", None))
    if options.command in ("stop", "kill9", "destroy") and not cluster.directory.exists():
        there = ", ".join(one.name for one in list_clusters())
        raise EmbeddedError(
            f'there is no embedded cluster "{cluster.name}"',
            hint=f"There are: {there}."
            if there
            else f"There is none in {cluster.directory.parent.parent}: see PGPS_HOME.",
        )
    if options.command == "stop":
        cluster.stop()
    elif options.command == "kill9":
        cluster.kill9()
    elif options.command == "destroy":
        cluster.destroy()
    else:
        if options.command == "start":
            cluster.start(timeout=options.timeout)
        print(cluster.dsn(options.dbname, tcp=options.tcp))


if __name__ == "__main__":
    sys.exit(main())
