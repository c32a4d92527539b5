"""Serve the console over HTTP."""

from __future__ import annotations

import uvicorn

from pgps_console.app import create_app
from pgps_console.config import ConsoleConfig

__all__ = ["make_server", "serve"]


def make_server(config: ConsoleConfig, *, log_level: str = "info") -> uvicorn.Server:
    """Return the server, which runs until told to stop."""
    return uvicorn.Server(
        uvicorn.Config(
            create_app(config),
            host=config.host,
            port=config.port,
            root_path=config.root_path,
            proxy_headers=bool(config.proxies),
            forwarded_allow_ips=list(config.proxies),
            server_header=False,
            access_log=False,
            log_level=log_level,
            # Live pages are never done by themselves.
            timeout_graceful_shutdown=3,
        )
    )


def serve(config: ConsoleConfig) -> None:
    """Serve until SIGINT or SIGTERM."""
    make_server(config).run()
