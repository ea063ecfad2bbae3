"""One process answers what others would each need something slow to start or large for."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError, current_process
from multiprocessing.connection import Client, Connection, Listener
from threading import Event
from typing import Any, Callable

from captioning.runtime import signals

_GONE = (OSError, EOFError, AuthenticationError)


class NoAnswer(Exception):
    """Nobody is there, or has an answer, or has it in time: who asks does it itself."""


@contextmanager
def answering(answer: Callable[..., Any]) -> Iterator[str]:
    """Give an address at which processes that this one has begun may `ask` within the block.

    answer: is called with what they ask, for several at a time. They hear nothing of what it raises
    but that there is no answer. The processes are multiprocessing's, which share its key.
    """
    ended = Event()
    with Listener(authkey=current_process().authkey) as listener, ThreadPoolExecutor() as threads:
        threads.submit(_listen, listener, threads, answer, ended)
        try:
            yield listener.address
        finally:
            ended.set()
            with suppress(*_GONE):
                Client(listener.address).close()  # which wakes it, if it has not seen the end


def ask(address: str, seconds: float, *question) -> Any:
    """Return the answer of the process that is `answering` there.

    Raises NoAnswer, also where this process is asked to stop while it waits.
    """
    until = time.monotonic() + seconds
    try:
        with _reach(address) as answers:
            answers.send(question)
            while not answers.poll(0.2):
                if signals.stop_requested() or time.monotonic() > until:
                    raise NoAnswer
            return answers.recv()
    except _GONE as error:
        raise NoAnswer from error


def _reach(address: str) -> Connection:
    return Client(address, authkey=current_process().authkey)


def _listen(listener, threads, answer, ended) -> None:
    while not ended.is_set():
        with suppress(*_GONE):  # one that is not of ours, or gone already
            threads.submit(_answer, listener.accept(), answer)


def _answer(asker: Connection, answer: Callable[..., Any]) -> None:
    with asker:  # who hears no answer does it itself, and learns why
        asker.send(answer(*asker.recv()))
