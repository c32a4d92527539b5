"""How --help writes options: typer says `<bool>` of a switch, as if it took a value."""

from __future__ import annotations

from typing import Any

import typer.core

__all__ = ["Command", "Group"]


def _plainly(params: list[Any]) -> list[Any]:
    """Return the parameters of a command; a switch names no type."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class Command(typer.core.TyperCommand):
    """A command with such help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its parameters, --help among them."""
        return _plainly(super().get_params(ctx))


class Group(typer.core.TyperGroup):
    """A group of commands with such help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its parameters, --help among them."""
        return _plainly(super().get_params(ctx))
