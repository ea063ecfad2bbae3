"""The parts of all shards put together, in the order of the plan."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from captioning.bulk import jsonl
from captioning.bulk.job import Job
from captioning.bulk.part import Part
from captioning.bulk.plan import Plan
from captioning.bulk.planning import BASE
from captioning.files.manifest import Hashed
from captioning.files.writing import staged


def merge(job: Job, plan: Plan) -> tuple[int, int]:
    """Write `out` and `failed`, then `marker`. Raises OSError.

    Returns how many images of the plan have captions, and how many failed.

    Killed at any instant and called again it gives the same files.
    """
    parts = [Part(job.parts, shard) for shard in range(len(plan))]
    again = set() if job.keeps() else {line["image"] for line in _lines(parts)}
    base = (line for line in jsonl.read(job.parts / BASE) if line and line["image"] not in again)
    images = 0
    with staged(job.out) as file:
        out = Hashed(file)
        for line in itertools.chain(base, _lines(parts)):
            if "error" not in line:
                out.write(jsonl.encode(line))
                images += 1
    counts = [part.counts() for part in parts]
    tars = {part["tar"]: part for part in counts if "tar" in part}
    failed = _write_failed(job, parts, set(tars))
    if job.marker.exists():
        tars = {**json.loads(job.marker.read_text(encoding="utf-8")).get("tars", {}), **tars}
    with staged(job.marker) as file:
        content = {"images": images, "failed": failed, "tars": tars, **out.manifest()}
        file.write(jsonl.encode(content))
    return tuple(sum(part[what] for part in counts) for what in ("images", "failed"))


def _lines(parts: list[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        yield from jsonl.read(part.path)


def _write_failed(job: Job, parts: list[Part], tars: set[str]) -> int:
    """Write `failed` with what other calls have put there; how many failures of this one's."""
    old = [line for line in jsonl.read(job.failed) if line]
    others = [line for line in old if line.get("out") != job.out.name]
    own = {line["image"]: line for line in old if line.get("out") == job.out.name}
    for line in _lines(parts):
        own.pop(line["image"], None)
        if "error" in line:
            own[line["image"]] = {**line, "out": job.out.name}
    for tar in tars:
        if tar in own and not any(line["image"] == tar for line in _lines(parts)):
            del own[tar]
    if others or own:
        with staged(job.failed) as file:
            file.writelines(jsonl.encode(line) for line in [*others, *own.values()])
    else:
        job.failed.unlink(missing_ok=True)
    return len(own)
