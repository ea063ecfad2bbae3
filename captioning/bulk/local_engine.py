"""The shards of a plan, captioned batch by batch in this process, and finished one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, Optional

from captioning.bulk import reading, stored_output, tars
from captioning.bulk.model import Captioning
from captioning.bulk.request import Request
from captioning.bulk.shards import Line, Part, Plan, parts_of
from captioning.bulk.sidecars import Sidecars
from captioning.files.writing import write_lines
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say

Count = Callable[[int], None]  # is told of images as they are done, so many more each time


class OneProcess:
    """This process alone, the engine where no other is asked for. load: makes the captioner."""

    def __init__(self, load: Callable[[], Captioning]):
        self.load = load
        self.model: Optional[Captioning] = None

    def start(self, request: Request, shards: int) -> None:
        """Be ready to caption. Raises UserError."""
        if self.model is None:
            self.model = self.load()
            say(self.model.report)

    def caption(self, request: Request, plan: Plan, shards: list[int], count: Count) -> None:
        """Caption those shards, or what is left of them. Raises Stopped where asked to, OSError."""
        parts: dict[int, Part] = {}
        for shard in shards:
            part = Part(request.parts, shard)
            if part.path.exists():
                publish(request, plan, part)
            else:
                parts[shard] = part.recover()
        unread = [(shard, len(part.lines)) for shard, part in parts.items()]
        if not unread:
            return
        model = self.model
        dataset = reading.ShardImages(
            plan.entries, unread, model.batch_size, model.read, model.join
        )
        for batch in model.ahead(reading.batches(dataset, model.num_workers)):
            if signals.stop_requested():
                raise signals.Stopped
            part = parts[batch.shard]
            if batch.last:
                part.seal()
                publish(request, plan, part)
                del parts[batch.shard]
                continue
            lines = model.lines(batch, len(part.lines), request)
            part.add(lines)
            count(len(lines))


def done_before(request: Request, plan: Plan) -> int:
    """The images that earlier calls have captioned, or failed to, of what is planned."""
    count = 0
    for part in parts_of(request.parts, plan):
        if part.marker.exists():
            counts = part.counts()
            count += counts["images"] + counts["failed"]
        else:
            count += len(part.read() if part.path.exists() else part.recover().lines)
    return count


def publish(request: Request, plan: Plan, part: Part) -> None:
    """Write what comes of a sealed part besides itself, then its marker."""
    request.claim_tars()
    number, entries = plan.number(part.shard), plan.entries(part.shard)
    finish(request, plan, part, write_beside(request, number, entries, part.read()))


def finish(request: Request, plan: Plan, part: Part, counts: dict[str, Any]) -> None:
    """Write a part's marker, and to the store what belongs there. Raises OSError, UserError."""
    write_lines(part.marker, [counts])
    if request.address:
        stored_output.keep_part(request, plan, part)


def write_beside(
    request: Request, number: int, entries: list[dict[str, Any]], lines: list[Line]
) -> dict[str, Any]:
    """Write the sidecars and the tar of a shard; what its marker holds.

    number: of the tar. entries, lines: all of the shard's. Whole files, the same each time: what
    was interrupted can be called again.
    """
    captioned = [line for line in lines if "error" not in line]
    if request.sidecar:
        Sidecars(request.sidecar).write(captioned)
    tar = entries[0].get("tar")
    counts: dict[str, Any] = {"images": len(captioned), "failed": len(lines) - len(captioned)}
    if folder := request.tars():
        counts["written"] = folder.write(
            number, lambda file: tars.write(file, number, captioned, tar)
        )
    # Without a stamp, as of a tar that was not there, it is looked for anew.
    return counts if tar is None else {"tar": tar, "stamp": entries[0].get("stamp"), **counts}


@contextmanager
def disks_told_of(request: Request) -> Iterator[None]:
    """Make a disk's refusal the one line that a user can do something about."""
    try:
        yield
    except OSError as error:
        place = error.filename or request.out
        raise UserError(f"cannot write {place}: {error.strerror or error}") from error
