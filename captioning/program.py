"""How a program of one process or several ends: well, asked to stop, with one line, or in a bug."""

from typing import Callable

from captioning import distributed, failing, stopping
from captioning.errors import UserError
from captioning.run_log import say


def exit_code(program: Callable[[], None]) -> int:
    """Run it; 0, or 2 after the one line that says what the user can mend.

    0, too, when it has ended early because it was asked to, see `captioning.stopping`.
    """
    with stopping.watch():
        try:
            program()
        except stopping.Stopped:
            reason = stopping.asked() or "another process"
            say(f"stopped by {reason}; the same command goes on from here")
        except UserError as error:
            failing.report(f"error: {error}")
            return 2
        except Exception:
            failing.end_after_a_bug()
            raise
        finally:
            distributed.stop()
    return 0
