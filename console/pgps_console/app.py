"""The console as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.resources
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import psycopg
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

import pgps
from pgps.errors import PgpsError, from_database
from pgps_console import render
from pgps_console.actions import ACTIONS, Action
from pgps_console.config import ConsoleConfig
from pgps_console.database import Busy, Refused
from pgps_console.guard import Guard
from pgps_console.pages import PAGES, Look, NotThere, Page
from pgps_console.sessions import COOKIE, Session, Sessions

__all__ = ["create_app"]

# The scripts are put there by hatch_build.py, so that no address outside is ever asked for one.
_STATIC = importlib.resources.files("pgps_console") / "static"
_ASSETS = {
    "console.css": _STATIC / "console.css",
    "htmx.js": _STATIC / "vendor" / "htmx.js",
    "sse.js": _STATIC / "vendor" / "sse.js",
}
# How long a live page waits in silence until it says that it is there: proxies close what says nothing.
_PING = 15.0

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(config: ConsoleConfig) -> Starlette:
    """Return the application."""
    console = _Console(config)
    routes = [
        Route("/login", console.login, methods=["GET", "POST"]),
        Route("/logout", console.logout, methods=["POST"]),
        Route("/healthz", console.healthz),
        Route("/static/{name}", console.asset),
        Route("/act/{action}", console.act, methods=["GET", "POST"]),
        *(Route(page.path, console.show(page)) for page in PAGES),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=config.hosts)],
        exception_handlers={
            PgpsError: console.failed,
            psycopg.Error: console.failed,
            NotThere: console.failed,
            HTTPException: console.failed,
            _LogIn: console.to_login,
        },
        lifespan=console.lifespan,
    )


class _LogIn(Exception):
    """Somebody who is not logged in wants to see a page."""


@dataclass(slots=True)
class _Statement:
    """A change that is about to be made."""

    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


class _Console:
    def __init__(self, config: ConsoleConfig) -> None:
        self.config = config
        self.sessions = Sessions(config)
        self.templates = render.environment()
        self.stopping = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        house = asyncio.create_task(self.sessions.keep_house(), name="pgps-console-house")
        try:
            yield
        finally:
            self.stopping.set()
            house.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await house
            await self.sessions.close()

    # -----------------------------------------------------------------------
    # Pages
    # -----------------------------------------------------------------------

    def show(self, page: Page) -> Endpoint:
        """Return what answers requests for a page: itself, or as `?live=1` its moving part whenever that changes."""

        async def answer(request: Request) -> Response:
            session = self._session(request)
            if "live" in request.query_params:
                return StreamingResponse(self._live(page, request, session), media_type="text/event-stream")
            found = await page.look(Look(request, session.access))
            context = self._context(request, session) | {"page": page, **found}
            if request.headers.get("hx-request") == "true" and page.bare:
                return HTMLResponse(self._block(page, context))
            return HTMLResponse(self.templates.get_template(page.template).render(context))

        return answer

    def _block(self, page: Page, context: dict[str, Any]) -> str:
        template = self.templates.get_template(page.template)
        return "".join(template.blocks["live"](template.new_context(context)))

    async def _live(self, page: Page, request: Request, session: Session) -> AsyncIterator[str]:
        """Yield the moving part of a page whenever it has changed, as server-sent events."""
        last, silent = "", 0.0
        token = request.cookies.get(COOKIE)
        while not self.stopping.is_set() and not await request.is_disconnected():
            try:
                found = await page.look(Look(request, session.access))
                text = self._block(page, self._context(request, session) | {"page": page, **found})
            except (PgpsError, psycopg.Error, NotThere) as error:
                text = self.templates.get_template("_failed.html").render(error=_told(error))
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest != last:
                last, silent = digest, 0.0
                yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
            elif silent >= _PING:
                silent = 0.0
                yield ": still here\n\n"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), self.config.every)
            silent += self.config.every
            if self.sessions.find(token, touch=False) is not session:
                return

    def _session(self, request: Request) -> Session:
        # What an open page asks by itself, again and again, is nobody's being here.
        is_asked = "hx-request" not in request.headers and "live" not in request.query_params
        session = self.sessions.find(request.cookies.get(COOKIE), touch=is_asked)
        if session is None:
            raise _LogIn
        return session

    def _context(self, request: Request, session: Session | None) -> dict[str, Any]:
        root = request.scope.get("root_path", "")
        query = {key: value for key, value in request.query_params.items() if key != "live"}
        return {
            "root": root,
            "session": session,
            "said": [session.said.popleft() for _ in range(len(session.said))]
            if session and "live" not in request.query_params and "hx-request" not in request.headers
            else [],
            "here": _inside(request),
            "query": query,
            "live_url": f"{quote(request.scope['path'])}?{urlencode({**query, 'live': '1'})}",
            "changes": not self.config.read_only,
            "version": pgps.__version__,
            "pages": PAGES,
        }

    # -----------------------------------------------------------------------
    # Changes
    # -----------------------------------------------------------------------

    async def act(self, request: Request) -> Response:
        """Ask for what a change needs, show its statement, and run it when it has been seen."""
        session = self._session(request)
        action = ACTIONS.get(request.path_params["action"])
        if action is None:
            raise NotThere(f'there is no action "{request.path_params["action"]}"')
        if self.config.read_only:
            raise Refused("this console is read-only", hint="Start another one without --read-only.")
        given = await _form(request) if request.method == "POST" else parse_qs(request.url.query)
        if request.method == "POST" and not session.owns(given.get("csrf", [""])[0]):
            raise Refused("the form was not made for this visit", hint="Go back, reload the page and try again.")
        # What a form does not say is empty.
        values = defaultdict(str, {key: found[0].strip() for key, found in given.items()})
        chosen = given.get("chosen", [])
        context = self._context(request, session) | {
            "action": action,
            "values": values,
            "chosen": chosen,
            "statement": None,
            "error": None,
            "back": action.back(values),
        }
        if action.missing(values):
            return self._form_page(context, 200)
        try:
            statement = await self._statement(session, action, values, chosen)
            context["statement"] = statement
            if request.method == "POST" and values.get("step") == "run":
                if values.get("seen") != statement.digest:
                    raise Refused("this is not the statement that was shown", hint="Look at it again, and run it.")
                await self._run(session, action, values, chosen)
                return _see(f"{context['root']}{action.back(values)}")
        except (PgpsError, psycopg.Error) as error:
            context["error"] = _told(error)
            return self._form_page(context, 409)
        return self._form_page(context, 200)

    def _form_page(self, context: dict[str, Any], status: int) -> Response:
        return HTMLResponse(self.templates.get_template("act.html").render(context), status_code=status)

    async def _statement(
        self, session: Session, action: Action, values: dict[str, str], chosen: list[str]
    ) -> _Statement:
        built = action.build(values, chosen)
        # A connection knows how the server wants texts to be written.
        async with session.access.ask() as reader:
            return _Statement(reader.text(built))

    async def _run(self, session: Session, action: Action, values: dict[str, str], chosen: list[str]) -> None:
        result = await session.access.change(action.build(values, chosen))
        session.said.append(f"{action.done}: {result}" if result not in (None, "") else action.done)

    # -----------------------------------------------------------------------
    # Coming and going
    # -----------------------------------------------------------------------

    async def login(self, request: Request) -> Response:
        """Ask who it is, and try that at the database."""
        context = self._context(request, None) | {"error": None, "user": "", "next": request.query_params.get("next")}
        if request.method == "POST":
            given = {key: values[0] for key, values in (await _form(request)).items()}
            try:
                address = request.client.host if request.client else ""
                token = await self.sessions.login(given.get("user", ""), given.get("password", ""), address)
            except PgpsError as error:
                context |= {"error": _told(error), "user": given.get("user", ""), "next": given.get("next")}
                return HTMLResponse(self.templates.get_template("login.html").render(context), status_code=401)
            await self.sessions.logout(request.cookies.get(COOKIE))
            answer = _see(f"{context['root']}{_own_page(given.get('next'))}")
            answer.set_cookie(
                COOKIE,
                token,
                path=context["root"] or "/",
                httponly=True,
                secure=request.url.scheme == "https",
                samesite="strict",
            )
            return answer
        return HTMLResponse(self.templates.get_template("login.html").render(context))

    async def logout(self, request: Request) -> Response:
        """End the visit."""
        session = self._session(request)
        if not session.owns((await _form(request)).get("csrf", [""])[0]):
            raise Refused("the form was not made for this visit", hint="Go back, reload the page and try again.")
        await self.sessions.logout(request.cookies.get(COOKIE))
        answer = _see(f"{request.scope.get('root_path', '')}/login")
        answer.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
        return answer

    async def to_login(self, request: Request, _: Exception) -> Response:
        """Send somebody to where they can log in, and from there to the page they wanted."""
        where = f"{request.scope.get('root_path', '')}{render.link('/login', next=_inside(request))}"
        if "hx-request" in request.headers:
            return Response(status_code=204, headers={"HX-Redirect": where})
        if "live" in request.query_params:
            return Response(status_code=204)  # a browser does not try this again
        return _see(where)

    # -----------------------------------------------------------------------
    # The rest
    # -----------------------------------------------------------------------

    async def failed(self, request: Request, error: Exception) -> Response:
        """Say what went wrong, and what helps."""
        told = _told(error)
        if "hx-request" in request.headers:
            return HTMLResponse(self.templates.get_template("_failed.html").render(error=told))
        session = self.sessions.find(request.cookies.get(COOKIE))
        context = self._context(request, session) | {"error": told}
        return HTMLResponse(self.templates.get_template("failed.html").render(context), status_code=told["status"])

    async def asset(self, request: Request) -> Response:
        """Send a style or a script."""
        path = _ASSETS.get(request.path_params["name"])
        if path is None:
            raise NotThere("there is no such file")
        return FileResponse(str(path), headers={"Cache-Control": "public, max-age=3600"})

    async def healthz(self, _: Request) -> Response:
        """Say that the console answers; it asks no database, since it has no role of its own."""
        return Response("ok\n", media_type="text/plain")


def _inside(request: Request) -> str:
    """Return the address of a request without the path that a proxy serves the console under."""
    path = quote(request.scope["path"].removeprefix(request.scope.get("root_path", ""))) or "/"
    return f"{path}?{request.url.query}" if request.url.query else path


def _own_page(path: str | None) -> str:
    """Return a path on this console, whatever a link has put behind next=."""
    wanted = path or "/"
    parts = urlsplit(wanted)
    fine = not parts.scheme and not parts.netloc and parts.path.startswith("/")
    # Taken apart here, "///evil.example" has no host; a browser finds one, behind however many slashes, and leaves out
    # tabs and ends of line between them.
    odd = wanted.startswith("//") or any(each == "\\" or each < " " for each in wanted)
    return wanted if fine and not odd else "/"


async def _form(request: Request) -> dict[str, list[str]]:
    body = await request.body()
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=2000)
    except ValueError:  # no UTF-8, or too many fields
        raise HTTPException(400, "the form cannot be read") from None


def _see(where: str) -> Response:
    return RedirectResponse(where, status_code=303)


_STATUS = {"42501": 403, "42704": 404, "57014": 503}


def _told(error: Exception) -> dict[str, Any]:
    """Return what to say of an error: message, hint, SQLSTATE, and the status of HTTP."""
    if isinstance(error, HTTPException):
        return {"message": error.detail, "hint": "", "sqlstate": "", "status": error.status_code}
    if isinstance(error, NotThere):
        return {"message": str(error), "hint": error.hint, "sqlstate": "", "status": 404}
    known = from_database(error) if isinstance(error, psycopg.Error) else error
    message = known.message if isinstance(known, PgpsError) else str(known)
    sqlstate = getattr(known, "sqlstate", None) or ""
    status = 403 if isinstance(known, Refused) else _STATUS.get(sqlstate, 503 if sqlstate[:2] in {"08", "57"} else 400)
    if isinstance(known, Busy):
        status = 503
    if sqlstate == "57014":
        return {
            "message": "the database took longer than ten seconds, and the question was cancelled",
            "hint": "Narrow it down with a filter.",
            "sqlstate": sqlstate,
            "status": status,
        }
    return {"message": message, "hint": getattr(known, "hint", "") or "", "sqlstate": sqlstate, "status": status}
