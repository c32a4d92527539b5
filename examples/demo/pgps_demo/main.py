"""The command `pgps demo`."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["demo"]

Keep = Annotated[bool, typer.Option("--keep", help="Leave the broker running afterwards, and say how to connect.")]
Speed = Annotated[float, typer.Option(help="Events published a second, altogether; 0 is as fast as it goes.", min=0)]
Part = Annotated[float, typer.Option(help="Play only this share of the data, evenly spread.", min=0.01, max=1)]
Seed = Annotated[int, typer.Option(help="Which transactions are rolled back or late: the same number, the same ones.")]
Networks = Annotated[
    bool, typer.Option(help="Play it over linked brokers, too: four, six, then two networks; patterns; and chess.")
]
Spark = Annotated[bool, typer.Option(help="End with Spark: the quotes through JDBC, an archive and a report.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on stdout, for programs.")]


def demo(
    ctx: typer.Context,
    keep: Keep = False,
    speed: Speed = 3000,
    part: Part = 1.0,
    seed: Seed = 1,
    networks: Networks = True,
    spark: Spark = True,
    json: Json = False,
) -> None:
    """Play real data through brokers of its own and prove that everything arrived, once and in order.

    Starts a private server and a worker, publishes 52,281 glucose readings
    and 12,154 stock quotes, and compares what every subscriber has with what
    plain Python works out from the raw data. Then the same over links: home,
    hospital, pharmacy and auditor, each on a server of its own, of which one
    is killed and one cut off on the way; the six databases of the paper's
    figure 5; and a process group whose members are all killed and recover
    from a spool, while another network follows. Then patterns: readings above
    the patient's threshold that nobody treats alert the hospital, stocks fall
    and recover, as pandas counts them. Two programs play chess by mail, are
    killed, the broker crashes, and the game is the same. Spark ends it: it
    publishes the quotes through JDBC, archives them and writes a report into
    ./pgps-demo-report. Exit status 1 if anything differs.
    """
    # Imported here, so that every other command starts without the packages of the demonstration.
    from pgps_demo.run import run

    wants_json = json or bool(getattr(ctx.obj, "json", False))
    raise typer.Exit(run(keep=keep, speed=speed, part=part, seed=seed, networks=networks, spark=spark, json=wants_json))
