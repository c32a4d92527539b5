"""The state machine: every option of SYNCPOINT, for the sender and the receiver, in every status."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import column, rows
from tests.fix_clock import Clock
from tests.fix_units import Party
from tests.sql.units.conftest import SERVICE

STATUSES = ("RECEIVED", "ACCEPTED", "DELIVERED", "BACKEDOUT", "PROCESSED", "CANCELLED", "TIMEOUT", "DISCARDED")
OPTIONS = ("backout", "cancel", "commit", "delete", "eoc", "eoccancel", "last", "query", "setustatus")
OVER = STATUSES[3:]
# The paper's table, read once more by hand: (option, caller) → status before: status after.
ALLOWED: dict[tuple[str, str], dict[str, str]] = {
    ("backout", "sender"): {"RECEIVED": "BACKEDOUT"},
    ("backout", "receiver"): {"DELIVERED": "ACCEPTED"},
    ("cancel", "sender"): {"ACCEPTED": "CANCELLED"},
    ("cancel", "receiver"): {"DELIVERED": "CANCELLED"},
    ("commit", "sender"): {"RECEIVED": "ACCEPTED"},
    ("commit", "receiver"): {"DELIVERED": "PROCESSED"},
    ("delete", "sender"): {status: status for status in OVER},
    ("eoc", "sender"): {"RECEIVED": "ACCEPTED"},
    ("eoccancel", "sender"): {"RECEIVED": "ACCEPTED"},
    ("last", "sender"): {status: status for status in STATUSES},
    ("query", "sender"): {status: status for status in STATUSES},
    ("query", "receiver"): {"DELIVERED": "DELIVERED"},
    ("setustatus", "sender"): {status: status for status in STATUSES[:3]},
    ("setustatus", "receiver"): {status: status for status in STATUSES[:3]},
}


class Scene:
    """A conversation whose client has received from its server, so that the units in it have a receiver at once."""

    def __init__(self, client: Party, server: Party, broker: psycopg.Connection, clock: Clock) -> None:
        self.client, self.server, self.broker, self.clock = client, server, broker, clock
        self.conversation = client.request(SERVICE, "begin")["conversation"]
        assert server.text("new") == "begin"
        server.sync("commit")

    def unit_in(self, status: str) -> str:
        """Let the server send a unit, and bring it into a status; return its id."""
        option = "sync" if status in ("RECEIVED", "BACKEDOUT") else "commit"
        uow_id: str = self.server.send(
            "x", self.conversation, option=option, status_lifetime=2, lifetime="1 hour"
        )["uow_id"]  # fmt: skip
        if status in ("DELIVERED", "PROCESSED"):
            assert self.client.text(self.conversation) == "x"
        if status in ("BACKEDOUT", "PROCESSED", "CANCELLED"):
            caller = self.client if status == "PROCESSED" else self.server
            done = {"BACKEDOUT": "backout", "PROCESSED": "commit", "CANCELLED": "cancel"}[status]
            assert caller.sync(done, uow_id)["status"] == status
        elif status == "TIMEOUT":
            self.clock.advance("90 minutes")
        elif status == "DISCARDED":
            # What a restart is to the broker: its life is one that nobody has noted yet.
            rows(self.broker, "delete from pgps_internal.broker_life_mark")
            rows(self.broker, "select pgps_internal.note_life()")
        return uow_id


@pytest.fixture
def scene(broker: psycopg.Connection, party: Callable[..., Party], clock: Clock) -> Scene:
    return Scene(party("client"), party("server").serve(SERVICE), broker, clock)


def test_the_table_is_the_papers(broker: psycopg.Connection) -> None:
    made = rows(broker, "select option, caller, status, coalesce(becomes, status) from pgps_internal.uow_transitions()")
    assert len(made) == len(set(made))
    assert {(option, caller): {} for option, caller, *_ in made} == {key: {} for key in ALLOWED}
    for key, statuses in ALLOWED.items():
        assert {before: after for option, caller, before, after in made if (option, caller) == key} == statuses
    assert column(broker, "select status from pgps_internal.uow_statuses()") == list(STATUSES)


@pytest.mark.parametrize("status", STATUSES)
def test_every_option_of_either_caller_in_a_status(scene: Scene, status: str) -> None:
    for option in OPTIONS:
        for caller in ("sender", "receiver"):
            # The receiver's LAST is about units that it has sent itself.
            if (option, caller) != ("last", "receiver"):
                _try(scene, status, option, caller)


def _try(scene: Scene, status: str, option: str, caller: str) -> None:
    """Call SYNCPOINT about a new unit in a status, and look at what became of it."""
    who = scene.server if caller == "sender" else scene.client
    before, after = status, ALLOWED.get((option, caller), {}).get(status)
    uow_id = scene.unit_in(status)
    user_status = "half" if option == "setustatus" else None
    uow_named = None if option == "last" else uow_id
    if after is not None:
        row = who.sync(option, uow_named, user_status=user_status)
        assert (row["uow_id"], row["status"], row["user_status"]) == (uow_id, after, user_status), (option, caller)
    else:
        with pytest.raises(errors.ObjectNotInPrerequisiteState) as refused:
            who.sync(option, uow_named, user_status=user_status)
        assert f'"{option}"' in str(refused.value)
        assert f"status {before}" in str(refused.value)
        assert all(name in str(refused.value.diag.message_hint) for name in ALLOWED.get((option, caller), {}))
        after = before
    if (option, caller) == ("delete", "sender") and before in OVER:
        assert scene.server.status(uow_id) is None
    else:
        assert scene.server.status(uow_id) == after, (option, caller)
    if option in ("eoc", "eoccancel") and before != after:
        assert scene.client.text(scene.conversation) == "x"
        assert scene.client.sync("commit", uow_id)["conversation_state"] == option
        scene.__init__(scene.client, scene.server, scene.broker, scene.clock)  # type: ignore[misc]
    else:
        _finish(scene, uow_id)


def _finish(scene: Scene, uow_id: str) -> None:
    """End a unit, so that the next one is the only one under way."""
    status = scene.server.status(uow_id)
    if status == "RECEIVED":
        scene.server.sync("backout", uow_id)
    elif status == "ACCEPTED":
        scene.server.sync("cancel", uow_id)
    elif status == "DELIVERED":
        scene.client.sync("commit", uow_id)
