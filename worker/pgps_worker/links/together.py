"""Tasks that belong together: when one fails the others end, and what was raised is kept.

Not a task group: up to Python 3.12 one that fails while it is waited for leaves the task that waits marked as being
cancelled. Whoever looks at that mark, to tell a failure from a cancellation, would find a cancellation each time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

__all__ = ["ended", "leave", "leave_if_cancelled", "together"]

log = logging.getLogger(__name__)


async def together(named: dict[str, Coroutine[Any, Any, None]]) -> None:
    """Run some coroutines until all have ended, or one fails.

    Then the others are cancelled, and waited for, also by one that is cancelled meanwhile, or once more: whoever called
    closes the connections that they use. Raises ExceptionGroup with what failed, the first first.
    """
    tasks = [asyncio.create_task(coroutine, name=name) for name, coroutine in named.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        is_cancelled = await ended(late)
    failed += [task for task in late if not task.cancelled() and task.exception() is not None]
    errors = [error for task in failed if (error := task.exception()) is not None]
    if errors:
        raise BaseExceptionGroup("tasks that belong together failed", errors)
    if is_cancelled:
        raise asyncio.CancelledError


async def ended(tasks: Sequence[asyncio.Task[Any]]) -> bool:
    """Wait until tasks have ended, however; return True when the one that waits was cancelled meanwhile.

    A statement that is cancelled goes on using its connection until the server has answered, and psycopg ends the
    process when it was closed in between.
    """
    is_cancelled = False
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            is_cancelled = True
    for task in tasks:
        # Looked at, so that asyncio does not report what nobody waits for any more.
        _ = task.cancelled() or task.exception()
    return is_cancelled


async def leave(tasks: Sequence[asyncio.Task[Any]], *, at_once: bool) -> None:
    """Let tasks end, and log what failed; at_once: by cancelling them, and so it is when the caller is cancelled."""
    is_cancelled = False
    if at_once:
        _cancel(tasks)
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            is_cancelled = True
            _cancel(running)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
    if is_cancelled:
        raise asyncio.CancelledError


def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()


def leave_if_cancelled() -> None:
    """Raise what psycopg swallows: a statement that fails in the moment it is cancelled raises its own error."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
