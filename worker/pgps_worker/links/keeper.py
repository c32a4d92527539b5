"""Keeps one link up: connects both brokers, opens both ways, and begins again when it breaks."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from pgps.errors import ConfigError
from pgps_worker.connection import Connection, connect, in_one_line
from pgps_worker.ears import SessionEar
from pgps_worker.links import calls
from pgps_worker.links.pump import Pump
from pgps_worker.links.together import leave_if_cancelled, together
from pgps_worker.logs import about
from pgps_worker.outward import UNREACHED, outward

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgps_worker.config import WorkerConfig
    from pgps_worker.ears import Ears
    from pgps_worker.stop import Stop
    from pgps_worker.vitals import Vitals, WayVitals

__all__ = ["Keeper"]

log = logging.getLogger(__name__)

# These are the time-outs of the paper: first four seconds, then twice as long each time, up to sixty-four.
_FIRST_PAUSE, _LONGEST_PAUSE = 4.0, 64.0
# If another worker serves the link, this one looks again soon, in case the other leaves.
_ELSEWHERE_PAUSE = 1.0
# The other broker may need any time to commit a batch, so the only limit is the one that notices a dead connection.
_STATEMENT_TIMEOUT = 0.0

_HINTS = {
    "": UNREACHED,
    "3F000": "There is no pgps in that database: pgps install DSN",
    "42883": "The pgps there has no links: pgps upgrade DSN",
    "42501": "Over there: grant pgps_link to the role of the link",
}
# After one of these errors another attempt is of no use before an administrator has acted.
_BLOCKED = {"22023", "42710", "0A000", "55000"}


class ElsewhereError(Exception):
    """Another session serves this link."""


class ResumedError(Exception):
    """One of the two brokers became another one, has a new epoch or dropped the link while that was opened."""


class GoneError(Exception):
    """The other broker has dropped this link, which is being dropped here."""


@dataclass(slots=True)
class Keeper:
    """One link of this broker."""

    config: WorkerConfig
    link: calls.LinkRow
    stop: Stop
    vitals: Vitals
    ears: Ears
    was_up: bool = False

    async def run(self) -> None:
        """Serve the link until asked to stop, or cancelled."""
        pause = _FIRST_PAUSE
        while not self.stop.requested:
            self.was_up = False
            try:
                await self._serve()
            except ElsewhereError:
                await self._note("elsewhere")
                pause = _FIRST_PAUSE
                await self.stop.sleep(_ELSEWHERE_PAUSE)
                continue
            except ResumedError:
                continue
            except (psycopg.Error, OSError, ConfigError, ExceptionGroup) as group:
                # A statement that fails in the same moment in which it is cancelled raises its own error instead of the
                # cancellation.
                leave_if_cancelled()
                error = _worst(group)
                if not isinstance(error, psycopg.Error | OSError | ConfigError):
                    raise
            else:
                return
            if self.was_up:
                pause = _FIRST_PAUSE
            # A malformed connection string does not become right by itself either.
            is_blocked = getattr(error, "sqlstate", None) in _BLOCKED or isinstance(error, ConfigError)
            state = "blocked" if is_blocked else "waiting"
            text, hint = in_one_line(error), _hint(error)
            said = about(link=self.link.name, state=state, error=text, hint=hint)
            more = f" ({hint})" if hint else ""
            log.warning("link %s: %s%s; again in %.0f s", self.link.name, text, more, pause, extra=said)
            await self._note(state, error)
            await self.stop.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _serve(self) -> None:
        """Open both ways and carry until something breaks."""
        remote = outward(self.config, self.link.conninfo)
        name = f"link-{self.link.name}"[:24]
        async with contextlib.AsyncExitStack() as stack:

            async def opened(config: WorkerConfig) -> Connection:
                return await stack.enter_async_context(connect(config, name, statement_timeout=_STATEMENT_TIMEOUT))

            here = [await opened(self.config), await opened(self.config)]
            there = [await opened(remote), await opened(remote)]
            me, peer = await calls.identities(here[0], there[0])
            draining = any(row.draining for row in await calls.serve_links(here[0]) if row.name == self.link.name)
            try:
                out, back = await self._open(me | {"draining": draining}, peer, here, there)
            except GoneError:
                await self._close_here(here[0], peer)
                return
            now = await calls.identities(here[0], there[0])
            if [calls.lasting(said) for said in (me, peer)] != [calls.lasting(said) for said in now]:
                # Each side would number its batches for another broker than the one it is connected to, or one of them
                # has dropped the link meanwhile, and the other did not hear it. A change from here on ends these
                # sessions.
                raise ResumedError
            out.other_way, back.other_way = back, out
            await self._compare(out, back, here[0], there[0])
            await calls.note_link(here[0], self.link.name, "up")
            self.was_up = True
            vitals = self.vitals.link(self.link.name)
            vitals.state, vitals.connections = "up", vitals.connections + 1
            log.info("link %s: up, with broker %s", self.link.name, peer["name"])
            over_there = SessionEar(there[0])
            await over_there.listen(back.channel, calls.LINK_CHANNEL)
            with self.ears.hear(out.channel, calls.LINK_CHANNEL) as over_here:
                await together({f"{name}-out": out.run(over_here), f"{name}-back": back.run(over_there)})
            if out.drained and back.drained:
                # This broker comes last, so that whoever connects next finishes what has begun.
                await calls.close_link(there[0])
                await calls.close_link(here[0])
                log.info("link %s: drained and dropped", self.link.name)

    async def _compare(self, out: Pump, back: Pump, here: Connection, there: Connection) -> None:
        """Compare what each has received with what the other has sent, before anything is carried.

        A broker that was put back to an older state does not know; its neighbours do. Both are told, so that
        an administrator sees it wherever they look. Raises the error of the one, or a group of both.
        """
        errors = []
        for way in (out, back):
            try:
                await way.compare()
            except psycopg.errors.ObjectNotInPrerequisiteState as error:
                errors.append(error)
        if not errors:
            return
        for session in (here, there):
            # A broker of an older release has no place to store it.
            with contextlib.suppress(psycopg.Error):
                await calls.note_refusal(session, errors[0])
        raise ExceptionGroup("one of the two was restored", errors)

    async def _close_here(self, session: Connection, peer: dict[str, Any]) -> None:
        """Remove this side of a link whose other side has gone."""
        if (await calls.open_link(session, peer, "send", self.link.name)).taken:
            raise ElsewhereError
        await calls.close_link(session, gone=True)
        log.info("link %s: dropped", self.link.name)

    async def _open(
        self, me: dict[str, Any], peer: dict[str, Any], here: list[Connection], there: list[Connection]
    ) -> tuple[Pump, Pump]:
        """Take the four duties, at the broker of the lower id first: two that begin at once do not block each other."""
        taken: dict[tuple[str, str], calls.Opened] = {}
        sides: list[tuple[str, list[Connection], dict[str, Any], str | None]] = [
            ("here", here, peer, self.link.name),
            ("there", there, me, None),
        ]
        for side, sessions, other, link in sorted(sides, key=lambda s: str((me if s[0] == "here" else peer)["broker"])):
            for session, duty in zip(sessions, ("send", "receive"), strict=True):
                opened = await calls.open_link(session, other, duty, link)
                if opened.gone:
                    raise GoneError
                if opened.taken:
                    # If another link of this broker has taken it, this link would be a second one to the same broker.
                    await calls.open_link(here[0], peer, "look", self.link.name)
                    raise ElsewhereError
                taken[side, duty] = opened
        vitals = self.vitals.link(self.link.name)
        return (
            self._pump(here[0], there[1], taken["here", "send"], taken["there", "receive"], vitals.out),
            self._pump(there[0], here[1], taken["there", "send"], taken["here", "receive"], vitals.back),
        )

    def _pump(
        self,
        source: Connection,
        target: Connection,
        sends: calls.Opened,
        receives: calls.Opened,
        carried: WayVitals,
    ) -> Pump:
        return Pump(source, target, sends.channel, receives.last, receives.mark, self.stop, self.vitals, carried)

    async def _note(self, state: str, error: BaseException | None = None) -> None:
        """Record the state; when this broker is away itself there is nobody to tell."""
        vitals = self.vitals.link(self.link.name)
        vitals.state = state
        if error is not None:
            vitals.failures += 1
            vitals.last_error = getattr(error, "sqlstate", None) or type(error).__name__
        with contextlib.suppress(psycopg.Error, OSError):
            async with connect(self.config, "links", statement_timeout=5.0) as connection:
                await calls.note_link(
                    connection,
                    self.link.name,
                    state,
                    error=in_one_line(error) if error else None,
                    hint=_hint(error) if error else None,
                )


def _worst(group: BaseException) -> BaseException:
    """Return the error of a group that somebody must act on, or the first: its ways break together."""
    errors = list(_errors(group))
    return next((error for error in errors if getattr(error, "sqlstate", None) in _BLOCKED), errors[0])


def _errors(group: BaseException) -> Iterator[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        for error in group.exceptions:
            yield from _errors(error)
    else:
        yield group


def _hint(error: BaseException) -> str | None:
    if isinstance(error, psycopg.Error):
        failed = error.pgconn
        if error.sqlstate is None and failed is not None and failed.needs_password:
            return "Give a password: passfile=… (mode 0600, readable for the worker) or service=… in conninfo."
        if error.sqlstate is None and failed is not None and failed.used_password:
            return "The server answers: see user, password and dbname in conninfo, and pg_hba.conf over there."
        return error.diag.message_hint or _HINTS.get(error.sqlstate or "", "Try it: psql with the link's conninfo.")
    return getattr(error, "hint", None)
