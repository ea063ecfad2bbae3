"""The shards of one process of several: captioned batch by batch, and finished one by one."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Callable, Optional

import torch.distributed as dist

from captioning.bulk import reading, tars
from captioning.bulk.model import Captioning
from captioning.bulk.planning import write_sidecar
from captioning.bulk.request import Request
from captioning.bulk.shards import Part, Plan, captions_of, parts_of
from captioning.files import stores
from captioning.files.writing import staged, write_lines
from captioning.runtime import distributed, stopping
from captioning.runtime.errors import UserError

PATIENCE_S = 10  # of a process that was asked to stop, for the others
PAUSE_S = 0.1


class Ranks:
    """All processes of a run, by the store through which they have met; there may be one alone.

    A collective operation would make all wait for the slowest at every batch, and fail where the
    last shard of one takes longer than the group is patient. `name` keeps two uses apart.
    """

    def __init__(self, name: str):
        self.here: Counter[str] = Counter()
        self.store = None
        if dist.is_initialized():
            self.store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())

    def add(self, what: str, count: int) -> int:
        """Count something; the sum over all processes so far."""
        self.here[what] += count
        return self.here[what] if self.store is None else self.store.add(what, count)

    def asked_to_stop(self) -> bool:
        """Whether any process was."""
        if self.store is None:
            return bool(stopping.asked())
        if stopping.asked():
            self.store.set("stop", "")
        return self.store.check(["stop"])

    def wait_for_all(self, show: Callable[[int], None]) -> None:
        """Return when every process has come here; after a while, where one was asked to stop.

        show: is told of all images meanwhile.
        """
        if self.store is None:
            return
        self.store.set(f"rank {distributed.rank()}", "")
        everyone = [f"rank {rank}" for rank in range(distributed.world_size())]
        waited = 0.0
        while not self.store.check(everyone) and waited < PATIENCE_S:
            show(self.add("images", 0))
            time.sleep(PAUSE_S)
            waited = waited + PAUSE_S if self.asked_to_stop() else 0.0
        show(self.add("images", 0))


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
        if part.path.exists():
            _publish(request, plan, part)
        else:
            parts[shard] = part.recover()
    unread = [(shard, len(part.lines)) for shard, part in parts.items()]
    if not unread:
        return
    dataset = reading.ShardImages(plan, unread, model.batch_size, model.read, model.join)
    for batch in model.ahead(reading.batches(dataset, model.num_workers)):
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
    tar = plan.entries(part.shard)[0].get("tar")
    if request.write_shards:
        number = plan.header["first_shard"] + part.shard
        with staged(request.write_shards / f"{number:05d}.tar") as file:
            tars.write(file, number, captioned, tar)
    counts: dict[str, Any] = {"images": len(captioned), "failed": len(lines) - len(captioned)}
    if tar is not None:
        counts = {"tar": tar, "bytes": _size(tar), **counts}
    write_lines(part.marker, [counts])


def _size(tar: str) -> Optional[int]:
    """None of one that has gone, which is looked for anew. Raises StoreError."""
    try:
        return stores.stamp(tar)[0]
    except stores.StoreError:
        raise
    except UserError:
        return None
