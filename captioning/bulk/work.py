"""The shards of one process: captioned, written down batch by batch, and finished one by one."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from captioning.bulk import reading, tars
from captioning.bulk.model import Captioning
from captioning.bulk.ranks import Ranks
from captioning.bulk.request import Request
from captioning.bulk.shards import Part, Plan
from captioning.bulk.written import captions_of, write_sidecar
from captioning.files.writing import staged


def pending(request: Request, plan: Plan) -> list[int]:
    """The shards that have no marker yet."""
    return [shard for shard in range(len(plan)) if not Part(request.parts, shard).marked()]


def done_before(request: Request, plan: Plan) -> int:
    """The images that earlier calls have captioned, or failed to, of what is planned."""
    count = 0
    for shard in range(len(plan)):
        part = Part(request.parts, shard)
        if part.marked():
            counts = part.counts()
            count += counts["images"] + counts["failed"]
        else:
            count += len(part.read() if part.sealed() else part.recover().lines)
    return count


def caption_shards(
    request: Request,
    plan: Plan,
    shards: Iterable[int],
    model: Captioning,
    ranks: Ranks,
    show: Callable[[int], None],
) -> None:
    """Caption those shards, or what is left of them, until asked to stop. Raises OSError.

    show: is told how many images all processes have done in this call.
    """
    parts: dict[int, Part] = {}
    for shard in shards:
        part = Part(request.parts, shard)
        if part.sealed():
            _publish(request, plan, part)
        else:
            parts[shard] = part.recover()
    unread = [(shard, len(part.lines)) for shard, part in parts.items()]
    if not unread:
        return
    dataset = reading.ShardImages(plan, unread, model.batch_size, model.transform)
    for batch in reading.batches(dataset, model.config.num_workers):
        if ranks.asked_to_stop():
            return
        part = parts[batch.shard]
        if batch.last:
            part.seal()
            _publish(request, plan, part)
            del parts[batch.shard]
            continue
        lines = model.lines(batch, len(part.lines), request)
        part.add(lines)
        show(ranks.add("images", len(lines)))


def _publish(request: Request, plan: Plan, part: Part) -> None:
    """Write what comes of a part besides itself, then its marker."""
    lines = part.read()
    captioned = [line for line in lines if "error" not in line]
    if request.sidecar:
        for line in captioned:
            write_sidecar(request.sidecar_of(line["image"]), captions_of(line))
    entries = plan.entries(part.shard)
    if request.write_shards:
        number = plan.header["first_shard"] + part.shard
        with staged(request.write_shards / f"{number:05d}.tar") as file:
            tars.write(file, _samples(number, captioned, entries[0].get("tar")))
    counts: dict[str, Any] = {"images": len(captioned), "failed": len(lines) - len(captioned)}
    if "tar" in entries[0]:
        counts = {"tar": entries[0]["tar"], "bytes": os.path.getsize(entries[0]["tar"]), **counts}
    part.mark(**counts)


def _samples(
    number: int, lines: list[dict[str, Any]], tar: Optional[str]
) -> Iterator[tuple[str, str, bytes, dict[str, Any]]]:
    """Key, extension, bytes and line of the images: of photos numbered, of a tar as they were."""
    if tar is None:
        for place, line in enumerate(lines):
            path = Path(line["image"])
            with contextlib.suppress(FileNotFoundError):  # removed since it was captioned
                data = path.read_bytes()
                yield f"{number:05d}{place:06d}", path.suffix[1:].lower(), data, line
        return
    by_name = {line["image"]: line for line in lines}
    for member in itertools.takewhile(lambda _: by_name, tars.members(tar)):  # no further than read
        line = by_name.pop(member.name, None)
        if line is not None:
            yield member.key, member.name.rpartition(".")[2], member.data, line
