"""The Ray actor: loads a captioner on its machine, and captions several shards at once."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Callable, NamedTuple, Optional

from captioning.bulk import reading
from captioning.bulk.local_engine import disk_errors, write_outputs
from captioning.bulk.model import CheckpointModel
from captioning.bulk.request import Request
from captioning.bulk.shards import Line, ShardTask, ShardUpdate
from captioning.runtime.errors import UserError
from captioning.runtime.progress import collect_lines
from captioning.runtime.start import keep_memory

SEND_S = 1.0  # between two updates; a lost actor loses the lines since its last update


class Loaded(NamedTuple):
    """The result of loading a captioner.

    report: what was loaded. capacity: shards at once, one per reader process. problem: the error
    line that ends the run.
    """

    report: str = ""
    capacity: int = 0
    problem: Optional[str] = None


class CaptioningActor:
    """Ray calls the methods in threads: while one shard is captioned, others are read."""

    def __init__(self, folder: str):
        """folder: the base of relative paths; ignored if this machine does not have it."""
        with contextlib.suppress(OSError):
            os.chdir(folder)
        keep_memory()
        self._messages = collect_lines()
        self._lock = threading.Lock()  # protects the captioner and the random generator

    def load(self, load: Callable[[], CheckpointModel], request: Request) -> Loaded:
        """Build the captioner with the function `load`."""
        try:
            self._request, self._model = request, load()
        except UserError as error:
            return Loaded(problem=str(error))
        return Loaded(self._model.report, max(1, self._model.num_workers))

    def caption(self, task: ShardTask) -> Iterator[ShardUpdate]:
        """Caption the rest of a shard. The last update has the counts or a problem."""
        try:
            with disk_errors(self._request):
                yield from self._captioned(task)
        except UserError as error:
            yield ShardUpdate([], self._new_messages(), problem=str(error))

    def _captioned(self, task: ShardTask) -> Iterator[ShardUpdate]:
        file = task.local_file
        if file is not None and not os.path.exists(file):
            raise UserError(f"{file} is not on this machine; share its disk, or use a store")
        model, lines, shard = self._model, task.lines, task.shard
        dataset = reading.ShardImages(
            {shard: task.entries}.__getitem__,
            [(shard, len(lines))],
            model.batch_size,
            model.read,
            model.join,
        )
        new: list[Line] = []
        sent = time.monotonic()
        for batch in reading.batches(dataset, model.num_workers):
            if batch.ends_shard:
                break
            with self._lock:
                new += model.lines(batch, len(lines) + len(new), self._request)
            if time.monotonic() - sent > SEND_S:
                yield ShardUpdate(new, self._new_messages())
                lines, new, sent = lines + new, [], time.monotonic()
        counts = write_outputs(self._request, task.number, task.entries, lines + new)
        yield ShardUpdate(new, self._new_messages(), counts)

    def _new_messages(self) -> list[str]:
        """Return the messages since the last call."""
        messages: list[str] = []
        with contextlib.suppress(IndexError):  # other threads take messages, too
            while True:
                messages.append(self._messages.pop(0))
        return messages
