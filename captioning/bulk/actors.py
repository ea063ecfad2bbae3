"""Defines the Ray actor, which loads a captioner on its machine and captions several shards."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Callable, Optional

from captioning.bulk import reading
from captioning.bulk.local_engine import disk_errors, write_outputs
from captioning.bulk.model import CheckpointModel
from captioning.bulk.request import Request
from captioning.bulk.shards import Entry, OutputLine, ShardUpdate
from captioning.runtime.errors import UserError
from captioning.runtime.progress import collect_lines
from captioning.runtime.start import configure_process

SEND_S = 1.0  # seconds between two updates; a lost actor loses the lines since its last update


class CaptioningActor:
    """Captions shards on a machine of the cluster.

    Ray calls `caption` in several threads at once, so that other shards are read while one shard is
    captioned.
    """

    def __init__(self, folder: str):
        """Change to the driver's working folder, so that relative paths mean the same files.

        folder: the driver's working folder; ignored if this machine does not have this folder.
        """
        with contextlib.suppress(OSError):
            os.chdir(folder)
        configure_process()
        self._messages = collect_lines()
        self._lock = threading.Lock()  # held while the captioner and the random generator are used

    def load(
        self, load: Callable[[], CheckpointModel], request: Request
    ) -> tuple[str, int, Optional[str]]:
        """Build the captioner with the function `load`. Returns (report, capacity, problem).

        report: a log line that says what was loaded. capacity: the number of shards that this actor
        can hold at once; each is read by its own process. problem: None, or an error line that ends
        the run.
        """
        try:
            self._request, self._model = request, load()
        except UserError as error:
            return "", 0, str(error)
        return self._model.report, max(1, self._model.num_workers), None

    def caption(
        self,
        shard: int,
        tar_number: int,
        entries: list[Entry],
        lines: list[OutputLine],
        local_file: Optional[str],
    ) -> Iterator[ShardUpdate]:
        """Caption the rest of a shard. Yield updates; the last has the shard's counts or a problem.

        tar_number: the number of the output tar, if tars are written. entries: all entries of the
        shard. lines: the output lines from earlier attempts. local_file: an input file on the
        driver's disk that must also exist on this machine; None if there is none to check.
        """
        try:
            if local_file is not None and not os.path.exists(local_file):
                raise UserError(
                    f"{local_file} is not on this machine; put it on a shared disk or in a store"
                )
            with disk_errors(self._request):
                new, sent = [], time.monotonic()
                entries_of, left = {shard: entries}.__getitem__, [(shard, len(lines))]
                for batch in reading.batches(self._model, entries_of, left):
                    if not batch.entries:
                        break
                    with self._lock:
                        new += self._model.lines(batch, len(lines) + len(new), self._request)
                    if time.monotonic() - sent > SEND_S:
                        yield ShardUpdate(new, self._new_messages())
                        lines, new, sent = lines + new, [], time.monotonic()
                counts = write_outputs(self._request, tar_number, entries, lines + new)
                yield ShardUpdate(new, self._new_messages(), counts)
        except UserError as error:
            yield ShardUpdate([], self._new_messages(), problem=str(error))

    def _new_messages(self) -> list[str]:
        """Return the log lines since the last call, and remove them from the list."""
        messages = []
        with contextlib.suppress(IndexError):  # raised when the list is empty
            while True:
                messages.append(self._messages.pop(0))
        return messages
