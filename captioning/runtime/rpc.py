"""Calls a function in another process (remote procedure call).

The other process has a resource that is too slow or too large to set up in each process.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError, current_process
from multiprocessing.connection import Client, Connection, Listener
from threading import Event
from typing import Any, Callable

from captioning.runtime import signals

_LOST = (OSError, EOFError, AuthenticationError)


class CallFailed(Exception):
    """The other process died, raised an error or took too long."""


@contextmanager
def serve(function: Callable[..., Any]) -> Iterator[str]:
    """Yield an address. Within the block, child processes can `call` the function at this address.

    The function runs in threads, several at a time. If the function raises, the caller gets
    CallFailed. The child processes have to be started by multiprocessing, which passes its
    authentication key to them.
    """
    closing = Event()
    with Listener(authkey=current_process().authkey) as listener, ThreadPoolExecutor() as threads:
        threads.submit(_accept_calls, listener, threads, function, closing)
        try:
            yield listener.address
        finally:
            closing.set()
            with suppress(*_LOST):
                # Connect, so that `_accept_calls` wakes up and sees `closing`. Without a key,
                # because the exchange of keys would block if `_accept_calls` has already ended.
                Client(listener.address).close()


def call(address: str, timeout_s: float, *arguments) -> Any:
    """Call the function served at `address` with `arguments`, and return its result.

    Raises CallFailed if the function raises, the other process dies, `timeout_s` passes, or this
    process is asked to stop.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with Client(address, authkey=current_process().authkey) as connection:
            connection.send(arguments)
            while not connection.poll(0.2):
                if signals.stop_requested() or time.monotonic() > deadline:
                    raise CallFailed
            return connection.recv()
    except _LOST as error:
        raise CallFailed from error


def _accept_calls(listener, threads, function, closing) -> None:
    while not closing.is_set():
        with suppress(*_LOST):  # raised if the caller has no key or has died
            threads.submit(_answer, listener.accept(), function)


def _answer(connection: Connection, function: Callable[..., Any]) -> None:
    with connection:  # if the function raises, the connection closes without a reply
        connection.send(function(*connection.recv()))
