"""Calls into another process: results, errors, timeouts."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from captioning.runtime import job_runner, signals
from captioning.runtime.rpc import CallFailed, call, serve


def call_from_a_child(address):
    return call(address, 60, "of"), os.getpid()


def test_the_function_runs_in_the_process_that_serves_it():
    job_runner.preload_modules([__name__])  # later tests use the same server
    context = multiprocessing.get_context("forkserver")  # its processes ignore SIGTERM
    with (
        serve(lambda word: (word, os.getpid())) as address,
        ProcessPoolExecutor(1, context) as pool,
    ):
        (word, served_by), called_by = pool.submit(call_from_a_child, address).result()
    assert word == "of" and served_by == os.getpid() != called_by


def test_several_calls_run_at_a_time():
    both = threading.Barrier(2)
    serving = serve(lambda number: both.wait(60) * 0 + number)
    with serving as address, ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda number: call(address, 60, number), [1, 2])) == [1, 2]


def test_errors_and_strangers_harm_no_later_call():
    with serve(lambda number: 6 / number) as address:
        with pytest.raises(CallFailed):
            call(address, 60, 0)
        for text in (b"", b"hello" * 20):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(address)
                stranger.sendall(text)
        assert call(address, 60, 3) == 2


def test_nobody_at_the_address_is_a_failure(tmp_path):
    before = threading.active_count()
    with serve(lambda: "here") as address:
        assert call(address, 60) == "here"
    assert not os.path.exists(address) and threading.active_count() == before
    for gone in (address, str(tmp_path / "nothing")):
        with pytest.raises(CallFailed):
            call(gone, 60)


@pytest.mark.parametrize(("seconds", "request_after"), [(0.1, None), (60, 0.3)])
def test_a_caller_waits_until_its_time_is_up_or_it_is_asked_to_stop(seconds, request_after):
    wait = threading.Event()
    with serve(wait.wait) as address, signals.watch():
        if request_after:
            kill = threading.Timer(request_after, os.kill, (os.getpid(), signal.SIGTERM))
            kill.start()
        began = time.monotonic()
        with pytest.raises(CallFailed):
            call(address, seconds, 60)
        assert time.monotonic() - began < 30
        wait.set()


def test_a_caller_learns_of_the_death_of_the_process():
    key = multiprocessing.current_process().authkey
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        multiprocessing.current_process().authkey = key
        with serve(lambda: os._exit(7)) as address:
            os.write(write, address.encode())
            time.sleep(60)
    address = os.read(read, 1000).decode()
    with pytest.raises(CallFailed):
        call(address, 60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
