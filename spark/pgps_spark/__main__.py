"""The command `pgps-spark`: run the jobs of a pipeline, here or on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pgps._help import Command, Group
from pgps.errors import ConfigError, PgpsError
from pgps_spark.pipeline import config

__all__ = ["app", "main"]

app = typer.Typer(cls=Group, add_completion=False, pretty_exceptions_show_locals=False, no_args_is_help=True)

Configuration = Annotated[Path, typer.Argument(help="The pipeline's configuration, a TOML file.")]
Names = Annotated[list[str] | None, typer.Argument(help="Jobs to run, in this order; all, as they stand, without.")]
Master = Annotated[str | None, typer.Option(help="Where to run: local[2], spark://…, yarn [local[*]].")]
Memory = Annotated[str | None, typer.Option(help="Memory of the driver, as Spark writes it: 2g.")]
Json = Annotated[bool, typer.Option("--json", help="A line of JSON for each job on standard output.")]


@app.command(cls=Command)
def run(
    configuration: Configuration,
    jobs: Names = None,
    *,
    master: Master = None,
    driver_memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Run jobs one after the other; one that fails ends the run."""
    try:
        pipeline = config.load(configuration)
        chosen = _chosen(pipeline, jobs)
        from pgps_spark.sessions import session  # noqa: PLC0415 - what is wrong with the file is told without Spark

        spark = session("pgps-spark", master=master, driver_memory=driver_memory, **pipeline.spark)
    except ConfigError as error:
        _fail(error, 2)
    from pgps_spark.pipeline.run import run_job  # noqa: PLC0415 - see above

    try:
        for job in chosen:
            typer.echo(f"{job.name} …", err=True)
            done = run_job(spark, job)
            typer.echo(json.dumps(done) if as_json else ", ".join(f"{key} {value}" for key, value in done.items()))
    except PgpsError as error:
        _fail(error, 1)
    finally:
        spark.stop()


@app.command("list", cls=Command)
def list_jobs(configuration: Configuration) -> None:
    """Check a configuration and list its jobs."""
    try:
        pipeline = config.load(configuration)
    except ConfigError as error:
        _fail(error, 2)
    for job in pipeline.jobs.values():
        typer.echo(f"{job.name}\t{type(job).__name__.lower()}")


def _chosen(pipeline: config.Pipeline, names: list[str] | None) -> list[config.Job]:
    for name in names or ():
        if name not in pipeline.jobs:
            raise ConfigError(f"no job {name}", hint=f"There are {', '.join(pipeline.jobs)}.")
    return [pipeline.jobs[name] for name in names or pipeline.jobs]


def _fail(error: PgpsError, code: int) -> None:
    typer.echo(f"pgps-spark: {error}", err=True)
    raise typer.Exit(code)


def main() -> None:
    """Run the command line."""
    app(prog_name="pgps-spark")


if __name__ == "__main__":
    main()
