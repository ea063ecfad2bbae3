"""Captions the shards of a plan in this process, and writes the outputs of each finished shard."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable, Optional

from captioning.bulk import reading, stored_output, tars
from captioning.bulk.model import CheckpointModel
from captioning.bulk.request import Request
from captioning.bulk.shards import Entry, OutputLine, Plan, ShardCounts, ShardFiles
from captioning.files.writing import write_lines
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# A function that is called with the number of images that were just captioned or have just failed.
OnImages = Callable[[int], None]


class LocalEngine:
    """The default engine, which captions in this process. load: builds the captioner."""

    def __init__(self, load: Callable[[], CheckpointModel]):
        self.load = load
        self.model: Optional[CheckpointModel] = None

    def start(self, request: Request, shards: int) -> None:
        """Load the captioner, unless it is loaded. Raises UserError.

        request, shards: not used here; `RayEngine.start` uses them.
        """
        if self.model is None:
            self.model = self.load()
            log_line(self.model.report)

    def caption(self, request: Request, plan: Plan, shards: list[int], on_images: OnImages) -> None:
        """Finish the given shards. Raises Stopped, UserError, OSError."""
        model = self.model
        unfinished = {number: ShardFiles(plan.folder, number).recover() for number in shards}
        left = [(number, len(shard.lines)) for number, shard in unfinished.items()]
        for batch in model.prefetch(reading.batches(model, plan.entries, left)):
            if signals.stop_requested():
                raise signals.Stopped
            shard = unfinished[batch.shard]
            if not batch.entries:
                shard.seal()
                finish_shard(request, plan, shard)
                del unfinished[batch.shard]
                continue
            lines = model.lines(batch, len(shard.lines), request)
            shard.add(lines)
            on_images(len(lines))


def finish_shard(request: Request, plan: Plan, shard: ShardFiles) -> None:
    """Write the sidecars and the tar of a complete shard, then its marker."""
    tar_number, entries = plan.tar_number(shard.number), plan.entries(shard.number)
    counts = write_outputs(request, tar_number, entries, shard.read())
    mark_done(request, plan, shard, counts)


def mark_done(request: Request, plan: Plan, shard: ShardFiles, counts: ShardCounts) -> None:
    """Write the marker of a complete shard. If `out` is in a store, upload captions and marker.

    counts: the content of the marker. Raises OSError, UserError.
    """
    write_lines(shard.marker, [counts])
    if request.address:
        stored_output.upload_shard(request, plan, shard)


def write_outputs(
    request: Request, tar_number: int, entries: list[Entry], lines: list[OutputLine]
) -> ShardCounts:
    """Write the sidecars and the tar of a shard; return the content of the shard's marker.

    tar_number: the number of the output tar, if tars are written. entries, lines: all entries and
    output lines of the shard. Each file is written atomically. A repeated call, such as after a
    crash, writes the same files again.
    """
    captioned = list(request.kept(lines))
    failed = sum("error" in line for line in lines)
    if request.sidecar:
        request.sidecars().write(captioned)
    tar = entries[0].get("tar")
    counts = {"images": len(captioned), "failed": failed}
    if request.filter:
        counts["filtered"] = len(lines) - len(captioned) - failed
    if folder := request.tars():
        counts["written"] = folder.write(
            tar_number, lambda file: tars.write(file, tar_number, captioned, tar)
        )
    # The stamp of a missing input tar is None, so that the next call tries again to read the tar.
    return counts if tar is None else {"tar": tar, "stamp": entries[0].get("stamp"), **counts}


@contextmanager
def disk_errors(request: Request) -> Iterator[None]:
    """Within the block, turn an OSError into a UserError that names the file."""
    try:
        yield
    except OSError as error:
        place = error.filename or request.out
        raise UserError(f"cannot write {place}: {error.strerror or error}") from error
