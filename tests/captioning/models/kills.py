"""Processes that are killed while they save a checkpoint, and what they leave behind."""

import os
import shutil
import signal
from contextlib import contextmanager
from types import SimpleNamespace

from captioning.models import checkpoints

FILE_OPERATIONS = ("open", "fsync", "replace", "unlink", "link")


def die_at(count):
    """Let this process kill itself before its file operation of this number, from 0."""
    operations = iter(range(count + 1))

    def counted(operation):
        def call(*arguments, **settings):
            if next(operations) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **settings)

        return call

    for name in FILE_OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))
    complete = checkpoints.atomic_write

    @contextmanager
    def atomic_write(path):
        with complete(path) as file:
            yield SimpleNamespace(write=counted(file.write), flush=file.flush)

    checkpoints.atomic_write = atomic_write


def killed_at_each_operation(tmp_path, act, least):
    """Yield the folder after `act` was killed before its first, second, ... file operation.

    There have to be at least so many operations.
    """
    for count in range(100):
        folder = tmp_path / str(count)
        shutil.copytree(tmp_path, folder, ignore=shutil.ignore_patterns("[0-9]*"))
        child = os.fork()
        if child == 0:
            die_at(count)
            act(folder)
            os._exit(0)
        killed = os.waitpid(child, 0)[1] == signal.SIGKILL
        checkpoints.remove_leftovers(folder)
        yield folder
        if not killed:
            break
    assert not killed and count > least


def newest_after_a_kill(folder):
    """Return path and content of the newest checkpoint. Checks what a kill may leave behind."""
    path, newest, problems = checkpoints.read_newest(folder)
    assert not problems
    assert newest["epoch"] in (1, 2)
    left = {file.name for file in folder.iterdir()} - {checkpoints.BEST}
    assert len(left) == len(checkpoints.saved(folder)) >= 2, left
    return path, newest
