"""What every answer carries, and which requests are answered at all."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard"]

# Scripts and styles come from the console itself and from files only: what a subscriber's error or an event holds can
# never run.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer browsers would send forms with the origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_MOST_BYTES = 1_000_000


class _TooLarge(Exception):
    """A form goes on behind what a form may have."""


class Guard:
    """Refuse foreign hosts and foreign pages, and add the headers that keep browsers from doing what nobody asked."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app = app
        self.hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        secure = scope["scheme"] == "https"
        answered = False

        async def guarded(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
                if secure:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        refusal = self._refusal(scope)
        if refusal:
            await PlainTextResponse(f"{refusal}\n", status_code=403)(scope, receive, guarded)
            return
        try:
            if int(Headers(scope=scope).get("content-length") or 0) > _MOST_BYTES:
                raise _TooLarge
            await self.app(scope, _counted(receive), guarded)
        except _TooLarge:
            if not answered:
                await PlainTextResponse("the form is too large\n", status_code=413)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> str:
        """Return why a request is refused, "" when it is not."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if "*" not in self.hosts and name.lower() not in self.hosts:
            # A foreign name that was made to resolve to this address would otherwise see what its own pages may.
            return f'the console is not called "{name}"; start it with --allow-host {name}'
        if scope["method"] in {"GET", "HEAD"}:
            return ""
        origin = headers.get("origin")
        if origin is not None:
            if urlsplit(origin)[:2] != (scope["scheme"], host):
                return f"the form comes from {origin}, not from {scope['scheme']}://{host}"
        elif headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            return "the form comes from another site"
        return ""


def _counted(receive: Receive) -> Receive:
    """Return a receive that raises _TooLarge: what comes in pieces says no length beforehand."""
    left = _MOST_BYTES

    async def counted() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _TooLarge
        return message

    return counted
