"""Chess by mail: the game comes out the same, whoever is killed, and wherever."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps.client import Client
from pgps.embedded import EmbeddedCluster
from pgps.testing.clock import Clock
from pgps_chess.match import EachStepOnce, Match, Mishap, Mishaps, Seeded
from pgps_chess.record import GAMES, RecordError, next_move, position, read_record
from pgps_chess.setup import SERVICE, prepare, score_sheet

# A match is dozens of programs, one after the other.
pytestmark = pytest.mark.timeout(300)
Begin = Callable[..., Match]


@pytest.fixture
def begin(own_cluster: EmbeddedCluster) -> Begin:
    """Begin a match over a broker of its own."""
    prepare(own_cluster.dsn())

    def crash() -> None:
        own_cluster.kill9()
        own_cluster.start()

    def begun(mishaps: Mishaps = lambda _colour, _step: Mishap.NONE, *, together: bool = False) -> Match:
        return Match(partial(_dsn, own_cluster), "legal", mishaps, crash, together)

    return begun


def _dsn(cluster: EmbeddedCluster, player: str) -> str:
    return make_conninfo(cluster.dsn(), user=player)


def _check_sheets(match: Match) -> None:
    record = read_record("legal")
    assert score_sheet(match.dsn_of, "white") == record
    assert score_sheet(match.dsn_of, "black") == record


@pytest.mark.parametrize("name", sorted(path.stem for path in GAMES.glob("*.pgn")))
def test_the_records_end_with_mate(name: str) -> None:
    assert position(read_record(name)).is_checkmate()


def test_moves_that_are_not_legal_or_not_in_the_record_are_refused() -> None:
    record = read_record("opera")
    assert next_move(record, record) is None
    with pytest.raises(RecordError, match=r"half-move 2, Ke4, is not legal"):
        next_move(record, ["e4", "Ke4"])
    with pytest.raises(RecordError, match=r"does not have d4 as half-move 1"):
        next_move(record, ["d4"])


def test_each_player_is_killed_before_each_step(begin: Begin) -> None:
    mishaps = EachStepOnce()
    match = begin(mishaps)
    counts = match.play()
    _check_sheets(match)
    assert {step for colour, step in mishaps.seen if colour == "white"} >= {1, 2, 3, 4, 5, 8, 9, 10, 11, 12}
    assert {step for colour, step in mishaps.seen if colour == "black"} >= {1, 2, 3, 4, 5, 9, 10, 11, 12, 13}
    assert counts["killed"] == len(mishaps.seen)


@pytest.mark.parametrize("together", [False, True])
def test_the_broker_crashes_while_a_move_is_made(begin: Begin, together: bool) -> None:
    crashes = {("white", 10), ("white", 11), ("black", 11), ("black", 12)}

    def crash_once(colour: str, step: int) -> Mishap:
        if (colour, step) not in crashes:
            return Mishap.NONE
        crashes.remove((colour, step))
        return Mishap.CRASH

    match = begin(crash_once, together=together)
    done = [_eventually(match, player) for player in ("white", "black", "white")]
    assert done == ["moved e4", "moved e5", "moved Nf3"]
    assert not crashes
    assert match.counts["try later"] >= 4


@pytest.mark.parametrize("seed", [1, 2])
def test_players_are_killed_and_the_broker_crashes_at_random(begin: Begin, seed: int) -> None:
    match = begin(Seeded(seed, kills=0.06, crashes=2), together=seed % 2 == 0)
    counts = match.play()
    _check_sheets(match)
    assert counts["killed"] > 0
    assert counts["crashed"] == 2


def test_who_is_started_too_early_finds_why_and_goes(begin: Begin, own_cluster: EmbeddedCluster) -> None:
    match = begin()
    assert match.start("black") == "nothing there"
    assert match.start("white") == "moved e4"
    assert _eventually(match, "white") == "ACCEPTED"
    with match.program("black") as thinking:
        _go_up_to(thinking, 11)
        assert _eventually(match, "white") == "DELIVERED"
        thinking.kill()
    assert _eventually(match, "black") == "moved e5"
    assert _eventually(match, "black") == "ACCEPTED"
    with match.program("white") as thinking:
        _go_up_to(thinking, 10)
        assert _eventually(match, "black") == "DELIVERED"
        thinking.kill()
    assert _eventually(match, "white") == "moved Nf3"


@pytest.mark.parametrize(("last", "moves"), [("white", 1), ("black", 2)])
def test_a_move_that_nobody_receives_in_time(begin: Begin, own_cluster: EmbeddedCluster, last: str, moves: int) -> None:
    match = begin()
    for number in range(moves):
        assert _eventually(match, "black" if number % 2 else "white").startswith("moved")
    with psycopg.connect(own_cluster.dsn(), autocommit=True) as connection:
        clock = Clock(connection)
        clock.advance("8 days")
        assert _eventually(match, last) == "TIMEOUT"
        assert _eventually(match, last) == "TIMEOUT"
    assert score_sheet(match.dsn_of, last) == read_record("legal")[:moves]


def test_a_move_that_is_not_legal_is_refused(begin: Begin) -> None:
    match = begin()
    with Client(match.dsn_of("white")) as client, client.logon("white of the game") as white:
        white.send("Ke2", service=SERVICE, option="commit")
    with pytest.raises(RuntimeError, match="black has ended with exit status 1"):
        match.start("black")
    assert _eventually(match, "white") == "CANCELLED"
    assert score_sheet(match.dsn_of, "black") == []


def _go_up_to(program: subprocess.Popen[str], step: int) -> None:
    """Let a player's program make the steps before this one."""
    assert program.stdin is not None
    assert program.stdout is not None
    for line in program.stdout:
        if line == f"step {step}\n":
            return
        program.stdin.write("\n")
        program.stdin.flush()
    pytest.fail(f"it ended before step {step}")


def _eventually(match: Match, player: str) -> str:
    """Start it until the broker has noticed that the one before is gone."""
    while (done := match.start(player)) is None:
        pass
    return done
