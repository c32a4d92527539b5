"""White is the client. The numbers are those of the paper's twelve steps."""

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
        # 2. How does the last unit of work stand?
        step(2)
        last = player.last(me)
        if last is None:
            # 3. There is no game yet: the first move begins it.
            step(3)
            done = player.open(me, SERVICE)
        else:
            # 4. There is one; it depends on the status how it goes on.
            step(4)
            assert last.status is not None
            assert last.conversation is not None
            match last.status:
                case "ACCEPTED":
                    # 5. Black has not yet received the last move.
                    step(5)
                    done = last.status
                case "DELIVERED":
                    # 6. Black thinks.
                    step(6)
                    done = last.status
                case "TIMEOUT":
                    # 7. Black did not receive the last move in time.
                    step(7)
                    done = last.status
                case "PROCESSED":
                    # 8. Black has received it, and committed its answer with it.
                    step(8)
                    # 9., 10., 11. Receive the answer, send one to it, commit both.
                    done = player.answer(me, last.conversation, steps=(9, 10, 11))
                case other:
                    # The paper knows no other: black refused the move, or the broker has lost it.
                    done = other
        # 12. Log off.
        step(12)
    return done
