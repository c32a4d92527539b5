"""Black is the server. The numbers are those of the paper's thirteen steps."""

from __future__ import annotations

from pgps_chess.player import Player
from pgps_chess.setup import SERVICE

__all__ = ["play"]


def play(player: Player) -> str:
    """Make a move if there is one to be made; return what was found or done."""
    step = player.step

    # 1. Log on, with a token, which allows to find units of work of earlier sessions again.
    step(1)
    with player.logon() as me:
        # 2. Register as the server.
        step(2)
        me.register(SERVICE)
        # 3. How does the last unit of work stand?
        step(3)
        last = player.last(me)
        if last is None:
            # 4. There is no game yet: receive white's first move, and go on with step 11.
            done = player.answer(me, "new", steps=(4, 11, 12))
        else:
            # 5. There is one; it depends on the status how it goes on.
            step(5)
            assert last.status is not None
            assert last.conversation is not None
            match last.status:
                case "ACCEPTED":
                    # 6. White has not yet received the last move.
                    step(6)
                    done = last.status
                case "DELIVERED":
                    # 7. White thinks.
                    step(7)
                    done = last.status
                case "TIMEOUT":
                    # 8. White did not receive the last move in time.
                    step(8)
                    done = last.status
                case "PROCESSED":
                    # 9. White has received it, and committed its answer with it.
                    step(9)
                    # 10., 11., 12. Receive the answer, send one to it, commit both.
                    done = player.answer(me, last.conversation, steps=(10, 11, 12))
                case other:
                    # The paper knows no other: white refused the move, or the broker has lost it.
                    done = other
        # 13. Deregister, log off.
        step(13)
        me.deregister(SERVICE)
    return done
