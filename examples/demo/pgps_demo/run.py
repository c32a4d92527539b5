"""The demonstration from beginning to end."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.text import Text

from pgps.cli._errors import FAILED, report
from pgps.cli._output import dumps
from pgps.errors import PgpsError
from pgps_demo import after, chess_run, scene, spark_run
from pgps_demo.after import Answer
from pgps_demo.broker import Broker
from pgps_demo.data import Data
from pgps_demo.display import Bars, Steps
from pgps_demo.expect import Expected, expect
from pgps_demo.group import run as group_run
from pgps_demo.network import figure5_run, healthcare_run
from pgps_demo.patterns import run as patterns_run
from pgps_demo.play import play, settle
from pgps_demo.prove import Verdict, judge_all
from pgps_demo.report import median_latency, show_answer, show_title, show_verdicts, summary
from pgps_demo.tally import Tally

__all__ = ["run"]

_WIDTH = 100
_NETWORK_SPEED = 3
_NETWORKS = ("healthcare", "figure_5", "group", "patterns")
_PROVED = ("subscriptions", "links", "states", "withheld", "members")


def run(
    *, keep: bool, speed: float, part: float, seed: int, json: bool, networks: bool = True, spark: bool = True
) -> int:
    """Run the demonstration and return its exit status; Ctrl-C, SIGTERM and SIGHUP clean up, too."""
    began = time.monotonic()
    talk = _console(stderr=True)
    # With --json, standard output is for data only, so what people read goes elsewhere.
    data_out = talk if json else _console()
    with _signals():
        try:
            data = Data.load().part(part)
            with Broker(keep=keep) as broker:
                result = _Demo(broker, Steps(talk), data_out, data).all(speed=speed, seed=seed)
                if keep:
                    broker.complete()
                    result["connect"] = broker.dsn()
            if networks:
                # Only some of the events are wanted behind a link.
                speed *= _NETWORK_SPEED
                result["healthcare"] = healthcare_run.run(data, Steps(talk), data_out, speed=speed, seed=seed)
                result["figure_5"] = figure5_run.run(data, Steps(talk), data_out, speed=speed)
                result["group"] = group_run.run(data, Steps(talk), data_out, speed=speed)
                result["patterns"] = patterns_run.run(Data.load(), Steps(talk), data_out, part=part)
                result["chess"] = chess_run.run(Steps(talk))
                result["ok"] = result["ok"] and all(result[name]["ok"] for name in (*_NETWORKS, "chess"))
            if spark:
                result["spark"] = spark_run.run(data, Steps(talk), data_out, output=Path("pgps-demo-report").absolute())
                result["ok"] = result["ok"] and result["spark"]["ok"]
            result["seconds"] = round(time.monotonic() - began, 1)
        except (PgpsError, psycopg.Error, OSError) as error:
            report(error, json=json)
            return FAILED
    _say_end(data_out, result)
    if json:
        sys.stdout.write(dumps(result) + "\n")
    if keep:
        _say_kept(talk, broker)
    return 0 if result["ok"] else FAILED


def _console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; a pipe or a file is as wide as the tables want to be."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let what would end the process at once interrupt it as Ctrl-C does, so that it cleans up."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Demo:
    """One run on one broker."""

    broker: Broker
    steps: Steps
    out: Console
    data: Data
    tally: Tally = field(default_factory=Tally)

    def all(self, *, speed: float, seed: int) -> dict[str, Any]:
        """Do everything and return the result for programs."""
        expected = expect(self.data)
        self._start()
        self._play(expected, speed=speed, seed=seed)
        exceptions, exceptions_ok = self._exceptions(expected)
        answers, audit_ok = self._audit(expected)
        verdicts = self._prove(expected)
        return summary(
            self.tally,
            verdicts,
            ok=all(each.ok for each in verdicts) and exceptions_ok and audit_ok,
            exceptions={**exceptions, "ok": exceptions_ok},
            audit={"in": answers[0].dicts(), "out": answers[1].dicts(), "ok": audit_ok},
        )

    def _start(self) -> None:
        with self.steps.step("a private PostgreSQL server") as notes:
            notes.append(f"PostgreSQL {self.broker.start_server()}")
        with self.steps.step("pgps installed; roles, event types, policies and subscriptions made"):
            self.broker.prepare()
        with self.steps.step("pgps-worker started") as notes:
            self.broker.start_worker()
            notes.append(f"process {self.broker.worker_pid}")

    def _play(self, expected: Expected, *, speed: float, seed: int) -> None:
        with Bars(self.steps.console, self.data, expected.wanted, self.tally) as bars:
            asyncio.run(play(self.broker, self.data, self.tally, speed=speed, seed=seed, watch=bars.watch))
        latency = median_latency(self.tally)
        if latency is not None:
            self.steps.console.print(Text(f"  from INSERT to the consumer: median {latency:.0f} ms", "dim"))

    def _exceptions(self, expected: Expected) -> tuple[dict[str, Any], bool]:
        show_title(self.out, "Settlements that failed: the exception queue, mended, retried, discarded")
        failed = after.count_by_symbol(self.broker, "failed")
        self._show(after.ask_exceptions(self.broker), *after.mend(self.broker))
        asyncio.run(settle(self.broker, lambda _: None))
        left = after.count_by_symbol(self.broker, "failed")
        self._show(after.discard(self.broker))
        discarded = after.count_by_symbol(self.broker, "discarded")
        given_up = {symbol: count for symbol, count in expected.failing.items() if symbol != scene.MENDED}
        ok = failed == expected.failing and left == discarded == given_up
        return {"failed": failed, "left_after_retry": left, "discarded": discarded}, ok

    def _audit(self, expected: Expected) -> tuple[list[Answer], bool]:
        show_title(self.out, "The auditable queues of glucose_reading, afterwards")
        answers, ok = after.audit(self.broker, expected)
        self._show(*answers)
        return answers, ok

    def _prove(self, expected: Expected) -> list[Verdict]:
        self.broker.stop_worker()
        verdicts = judge_all(self.broker, expected.wanted)
        show_title(self.out, "What each subscriber has, against what plain Python makes of the raw data")
        show_verdicts(self.out, verdicts)
        return verdicts

    def _show(self, *answers: Answer) -> None:
        for answer in answers:
            show_answer(self.out, answer)


def _say_end(out: Console, result: dict[str, Any]) -> None:
    out.print()
    for part in ("exceptions", "audit"):
        if not result[part]["ok"]:
            out.print(Text(f"✗ {part}: not what was worked out from the raw data", "bold red"))
    parts = [result, *(result[name] for name in _NETWORKS if name in result)]
    for name, part in zip(("one broker", *_NETWORKS), parts, strict=False):
        if not all(each["ok"] for kind in _PROVED for each in part.get(kind, [])):
            out.print(Text(f"✗ {name.replace('_', ' ')}: not what was worked out beforehand", "bold red"))
    if not result.get("chess", {"ok": True})["ok"]:
        out.print(Text("✗ chess by mail: not the game of the record", "bold red"))
    if not result.get("spark", {"ok": True})["ok"]:
        out.print(Text("✗ spark: not what was worked out from the raw data", "bold red"))
    count = sum(each["received"] for part in parts for each in part.get("subscriptions", []))
    if result["ok"]:
        told = f"✓ {count:,} deliveries: nothing missing, nothing twice, all in order but what was retried"
        out.print(Text(told, "bold green"), Text(f"({result['seconds']} s)", "dim"))
    else:
        out.print(Text("✗ not every subscription got exactly what it should", "bold red"))


def _say_kept(talk: Console, broker: Broker) -> None:
    worker = f"pgps-worker --dsn {shlex.quote(broker.dsn('broker_worker'))}"
    lines = {
        "connect": f"psql {shlex.quote(broker.dsn())}",
        "a worker": worker,
        "remove it": broker.remove_command,
    }
    talk.print()
    for what, command in lines.items():
        talk.print(Text.assemble((f"{what:<10}", "bold"), command), soft_wrap=True)
