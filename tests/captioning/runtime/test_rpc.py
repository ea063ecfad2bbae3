"""A process answers those that it began, who are never left waiting."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from captioning.runtime import job_runner, signals
from captioning.runtime.rpc import NoAnswer, answering, ask


def in_a_process(function, *arguments):
    """Return what it returns in a process that is forked from a server, as the demo's jobs are."""
    job_runner.prepare([__name__])  # a server that later tests of signals can have, too
    context = multiprocessing.get_context("forkserver")  # its processes do not hear SIGTERM
    with ProcessPoolExecutor(1, context) as pool:  # ended by a message, where Pool's may need it
        return pool.submit(function, *arguments).result()


def ask_for_the_process(address):
    return ask(address, 60, "of"), os.getpid()


def test_the_answer_is_that_of_the_process_asked():
    with answering(lambda word: (word, os.getpid())) as address:
        (word, answered), asked = in_a_process(ask_for_the_process, address)
    assert word == "of" and answered == os.getpid() != asked


def test_several_are_answered_at_a_time():
    both = threading.Barrier(2)
    waiting = answering(lambda number: both.wait(60) * 0 + number)
    with waiting as address, ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda number: ask(address, 60, number), [1, 2])) == [1, 2]


def test_who_fails_has_no_answer_and_answers_the_next():
    with answering(lambda number: 6 / number) as address:
        with pytest.raises(NoAnswer):
            ask(address, 60, 0)
        assert ask(address, 60, 3) == 2


def test_one_that_is_not_ours_and_one_that_goes_harm_nobody(tmp_path):
    with answering(lambda: "here") as address:
        for said in (b"", b"hello" * 20):
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(address)
                other.sendall(said)
        assert ask(address, 60) == "here"


def test_nobody_there_is_no_answer(tmp_path):
    with answering(lambda: "here") as address:
        assert ask(address, 60) == "here"
    assert not os.path.exists(address)
    before = threading.active_count()
    for gone in (address, str(tmp_path / "nothing")):
        with pytest.raises(NoAnswer):
            ask(gone, 60)
    assert threading.active_count() == before


def test_a_late_answer_is_none():
    wait = threading.Event()
    with answering(wait.wait) as address:
        with pytest.raises(NoAnswer):
            ask(address, 0.1, 60)
        wait.set()


def test_who_is_asked_to_stop_waits_no_longer():
    wait = threading.Event()
    with answering(wait.wait) as address, signals.watch():
        began = time.monotonic()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(NoAnswer):
            ask(address, 60, 60)
        assert signals.stop_requested() == "SIGTERM" and time.monotonic() - began < 30
        wait.set()


def ask_until_it_dies(address):
    try:
        return ask(address, 60, os.getpid())
    except NoAnswer:
        return "none"


def test_a_process_that_dies_leaves_who_asked_without_an_answer(tmp_path):
    """One of its jobs could outlive it."""
    key = multiprocessing.current_process().authkey
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        multiprocessing.current_process().authkey = key
        with answering(lambda process: os._exit(7)) as address:
            os.write(tell, address.encode())
            time.sleep(60)
    address = os.read(told, 1000).decode()
    assert ask_until_it_dies(address) == "none"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
