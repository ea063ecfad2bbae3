"""How a program of one process or several ends: well, asked to stop, with one line, or in a bug."""

from typing import Callable

from captioning.runtime import distributed, failing, stopping
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say


def exit_code(program: Callable[[], None]) -> int:
    """As `exit_code_unwatched`, and 0 when it has ended early because it was asked to.

    See `captioning.runtime.stopping`.
    """
    with stopping.watch():
        return exit_code_unwatched(program)


def exit_code_unwatched(program: Callable[[], None]) -> int:
    """Run it, signals left as they are; 0, or 2 after the one line of what the user can mend."""
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
