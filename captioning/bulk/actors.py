"""On a machine of a cluster: a captioner, and the shards that it is handed, several at once."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Callable, NamedTuple, Optional

from captioning.bulk import reading
from captioning.bulk.local_engine import disks_told_of, write_beside
from captioning.bulk.model import Captioning
from captioning.bulk.request import Request
from captioning.bulk.shards import Handed, Line, Made
from captioning.runtime.errors import UserError
from captioning.runtime.progress import keep_said

TELL_S = 1.0  # lines are sent this often, and lost with the actor until then


class Loaded(NamedTuple):
    """What comes of loading. report: of the captioner. at_once: shards; one to each reader.

    problem: the line that ends the run.
    """

    report: str = ""
    at_once: int = 0
    problem: Optional[str] = None


class CaptioningActor:
    """Ray calls its methods in threads. While one shard is captioned, the others are read."""

    def __init__(self, folder: str):
        """folder: where relative paths begin, if this machine has it."""
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._said = keep_said()
        self._turn = threading.Lock()  # the captioner's, and the random numbers'
        self._stopped = False

    def load(self, load: Callable[[], Captioning], request: Request) -> Loaded:
        """Make the captioner."""
        try:
            self._request, self._model = request, load()
        except UserError as error:
            return Loaded(problem=str(error))
        return Loaded(self._model.report, max(1, self._model.num_workers))

    def caption(self, handed: Handed) -> Iterator[Made]:
        """What is left of a shard, told of every second; the counts of its marker are the end."""
        try:
            with disks_told_of(self._request):
                yield from self._captioned(handed)
        except UserError as error:
            yield Made([], self._news(), problem=str(error))

    def stop(self) -> None:
        """End each shard after the batch that is captioned."""
        self._stopped = True

    def _captioned(self, handed: Handed) -> Iterator[Made]:
        if handed.seen is not None and not os.path.exists(handed.seen):
            raise UserError(f"{handed.seen} is not on this machine; share its disk, or use a store")
        model, lines, shard = self._model, handed.lines, handed.shard
        entries = {shard: handed.entries}.__getitem__
        unread, size = [(shard, len(lines))], model.batch_size
        dataset = reading.ShardImages(entries, unread, size, model.read, model.join)
        fresh: list[Line] = []
        told = time.monotonic()
        for batch in reading.batches(dataset, model.num_workers):
            if batch.last:
                break
            with self._turn:
                if not self._stopped:
                    fresh += model.lines(batch, len(lines) + len(fresh), self._request)
            if self._stopped or time.monotonic() - told > TELL_S:
                yield Made(fresh, self._news())
                lines, fresh, told = lines + fresh, [], time.monotonic()
            if self._stopped:
                return
        lines = lines + fresh
        counts = write_beside(self._request, handed.number, handed.entries, lines)
        yield Made(fresh, self._news(), counts)

    def _news(self) -> list[str]:
        """What has been said since it was asked for last."""
        news: list[str] = []
        with contextlib.suppress(IndexError):  # other threads take some, too
            while True:
                news.append(self._said.pop(0))
        return news
