"""Makes argument parsers of programs, and ends programs.

A program ends with success, after a stop signal, with an error line, or with a traceback.
With several processes, the process that caused an error prints before the others.
"""

import argparse
import atexit
import contextlib
import gc
import logging
import multiprocessing
import os
import re
import sys
import time
import traceback
from typing import Any, Callable, NoReturn, Optional

import torch.distributed as dist

from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError, visible
from captioning.runtime.progress import log_line

FAILED, INTERRUPTED = 2, 130  # exit codes after a UserError and after Ctrl-C
FIRST_ERROR_WAIT_S = 10  # wait before printing an error that another process may have caused


def program_parser(command: str, description: str, **options: Any) -> argparse.ArgumentParser:
    """Return a parser that replaces "~/" at the beginning of an argument by the home folder.

    Its --help keeps the lines of the description, such as example commands. options: further
    arguments of ArgumentParser.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    return _Parser(command, description=description, formatter_class=formatter, **options)


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of programs that load a checkpoint: --config and --device."""
    add = parser.add_argument
    add("--config", help="a YAML file, for a checkpoint without a configuration")
    add("--device", default="auto", help="cpu, cuda, cuda:1; default: a GPU if any")


def positive(text: str) -> int:
    """Return the number in the text of a flag, as its `type`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return int(text)


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args=None, namespace=None):
        words = map(str, sys.argv[1:] if args is None else args)
        # A shell expands ~/PATH, but not --FLAG=~/PATH.
        words = [re.sub("^(--[^=]+=)?~(?=/)", _with_home, word) for word in words]
        return super().parse_known_args(words, namespace)


def _with_home(match: re.Match) -> str:
    return (match[1] or "") + os.path.expanduser("~")  # "~" without a home folder


def run_program(program: Callable[[], Optional[int]], interrupted: Optional[str] = None) -> int:
    """Run a program and return its exit code. After a UserError, print one line, return FAILED.

    program: a function that returns an exit code, or None for 0. interrupted:

    - None: a signal asks the program to save and stop (see `signals`), with exit code 0. A second
      Ctrl-C returns INTERRUPTED.
    - a text: the first Ctrl-C prints the text and returns INTERRUPTED.

    With several processes, a process that fails ends at once instead of returning.
    """
    gc.enable()  # `tune_process` has disabled the collector for the imports
    if hasattr(sys.stdout, "reconfigure"):  # a locale may lack characters of captions and tables
        sys.stdout.reconfigure(errors="backslashreplace")
    with signals.watch() if interrupted is None else contextlib.nullcontext():
        try:
            return program() or 0
        except (signals.Stopped, KeyboardInterrupt) as stop:
            if interrupted is None and isinstance(stop, signals.Stopped):
                reason = signals.stop_requested() or "another process"
                log_line(f"stopped by {reason}; run the same command again to continue")
                return 0
            if interrupted:
                print(interrupted, file=sys.stderr)
            return _exit_if_distributed(INTERRUPTED)
        except UserError as error:
            line = visible(f"error: {error}")
            if not distributed.is_main():  # rank 0 may print the same error first
                _wait_for_first_error()
                line = f"[rank {distributed.rank()}] {line}"
            print(line, file=sys.stderr, flush=True)
            return _exit_if_distributed(FAILED)
        except Exception:
            if distributed.env_world_size() > 1:
                _exit_with_traceback()
            raise
        finally:
            distributed.stop()


def show_warnings() -> None:
    """Print logged warnings, one line each."""
    handler = logging.StreamHandler()
    handler.format = lambda record: visible(f"{record.levelname}: {record.getMessage()}")
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def exit_without_cleanup(code: int) -> NoReturn:
    """Run the functions registered with atexit, then end the process at once.

    This skips Python's clean-up, which would take a second to free libraries and weights.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_if_distributed(code: int) -> int:
    """Return `code`, or exit at once without `distributed.stop` if there is a process group.

    With NCCL, `distributed.stop` waits for the other processes. After an error, the other processes
    may wait for this process in a collective, so that `distributed.stop` would deadlock.
    """
    if dist.is_initialized():
        for child in multiprocessing.active_children():  # whose exit atexit would wait for
            child.kill()
        exit_without_cleanup(code)
    return code


def _wait_for_first_error() -> None:
    """Wait up to FIRST_ERROR_WAIT_S, so that the process that caused an error prints first.

    When a process fails, a collective raises an uninformative error in the other processes. The
    other processes wait here until the launcher notices the failed process and ends them.
    """
    deadline = time.monotonic() + FIRST_ERROR_WAIT_S
    while distributed.env_world_size() > 1 and time.monotonic() < deadline:
        if signals.stop_requested():  # the launcher ends all processes
            sys.stderr.flush()
            os._exit(1)
        time.sleep(0.1)


def _exit_with_traceback() -> NoReturn:
    """Print the traceback and end the process. Called in an except block, with several processes.

    Also prints which ranks reported no error, because they have died or hang. Exits at once:
    the traceback keeps the DistributedDataParallel object alive, so that `distributed.stop` could
    deadlock.
    """
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # the launcher, which has the store, may be gone
            store = dist.distributed_c10d._get_default_store()
            store.set(f"failed/{distributed.rank()}", "")
            _wait_for_first_error()
            ranks = range(distributed.world_size())
            silent = [str(rank) for rank in ranks if not store.check([f"failed/{rank}"])]
            if silent:
                waited = f"waited in vain for rank {', '.join(silent)}"
                print(f"error: [rank {distributed.rank()}] {waited}", file=sys.stderr)
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
