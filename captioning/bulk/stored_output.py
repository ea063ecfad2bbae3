"""Captions whose file is in an object store: a copy of it on this disk, and what goes there when.

The store has nothing that is renamed or appended to. ADDRESS.parts holds the plan, its header last,
and of each finished shard the lines, then the marker. Their names begin with the plan's, so that
those of another are never taken for its own. At the end come `failed`, `out` and `marker`, in this
order; the plan's header is the first that is removed. What a machine that is lost has brought there
another goes on with. Journals stay on the disk.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from captioning.bulk.request import Request
from captioning.bulk.shards import BASE, HEADER, Part, Plan, find, parts_of, remove_plan
from captioning.bulk.sidecars import Sidecars
from captioning.files import stores, uploads
from captioning.files.cache import cache_folder, cache_key
from captioning.files.local_copies import fetch
from captioning.files.reading import read_lines
from captioning.files.writing import write_lines
from captioning.runtime.errors import UserError

RECORD = "stored.json"  # which version of each file the copy is of


def place_of(out: str) -> tuple[Path, Optional[str]]:
    """Where `--out` is written on this disk, and its address if it is in a store.

    Raises UserError for an address that names no file.
    """
    stores.check_names_file("--out", out)
    if not stores.has_folders(out):
        return Path(out), None
    return cache_folder() / "captions" / cache_key(out, 16) / PurePosixPath(out).name, out


def begin(request: Request, restart: bool) -> None:
    """Let the copy be what the store has, and its unfinished plan the one to go on with.

    Raises UserError.
    """
    there = stores.stamps(f"{request.address}.parts")
    try:
        header = _header(request) if HEADER in there else None
    except UserError:  # it is damaged
        if not restart:
            raise
        header = None
    if header and restart:
        request.drop_tars(header)
        header = None
    if header and _known(there, header, header["file"]) is None:
        header = None
    local = find(request.parts)
    if not (local and header and local.header["file"] == header["file"]):
        remove_plan(request.parts)  # also what is left of one whose removal was cut short
        local = None
    # As on a disk, a plan of which nothing is captioned binds nobody. But of a shard that a lost
    # machine had captioned there may be files beside it, which another plan would take for others'.
    beside = request.sidecar or request.write_shards
    if local or (header and (beside or any(name.endswith(".done") for name in there))):
        _go_on(request, header, local, there)
    elif there:
        remove(request)
    for path in (request.failed, request.out, request.marker):
        _refresh(request, path)


def keep_plan(request: Request, plan: Plan) -> None:
    """Write a new plan to the store. Raises UserError."""
    with _nothing_lost(request):
        for name in (plan.header["file"], BASE):
            if (request.parts / name).exists():
                uploads.upload(request.parts / name, _address(request, plan.header, name))
        uploads.upload(request.parts / HEADER, f"{request.address}.parts/{HEADER}")


def keep_part(request: Request, plan: Plan, part: Part) -> None:
    """Write a finished shard to the store. Raises UserError, also where it has another's plan."""
    _require_own(request, plan)
    with _nothing_lost(request):
        for path in (part.path, part.marker):
            uploads.upload(path, _address(request, plan.header, path.name))


def before_merging(request: Request, plan: Plan) -> None:
    """Raise UserError where the store has another's plan by now; see what else has failed."""
    _require_own(request, plan)
    _refresh(request, request.failed)


def keep_captions(request: Request, plan: Plan) -> None:
    """Write what was merged to the store, the marker last. Raises UserError."""
    _require_own(request, plan)  # to merge may have taken long
    with _nothing_lost(request):
        for path in (request.failed, request.out, request.marker):
            there = uploads.upload(path, request.told(path)) if path.exists() else None
            if there is None:
                uploads.remove(request.told(path))
            _note(request, path, there)


def remove(request: Request) -> None:
    """Remove the plan and its parts from the store, the header first. Raises UserError."""
    uploads.remove(f"{request.address}.parts/{HEADER}")
    uploads.remove_folder(f"{request.address}.parts")


def _go_on(
    request: Request, header: dict[str, Any], local: Optional[Plan], there: dict[str, Any]
) -> None:
    def take(name: str) -> None:
        address = _address(request, header, name)
        stamp = there.get(address.rpartition("/")[2])
        if stamp is not None:
            fetch(address, request.parts / name, stamp)

    if local is None:
        take(BASE)
        file = header["file"]
        fetch(_address(request, header, file), request.parts / file, _known(there, header, file))
        local = Plan(request.parts, header)
    for part in parts_of(request.parts, local):
        stored = _known(there, header, part.marker.name) is not None
        if stored and not part.marker.exists():
            take(part.path.name)
            if request.sidecar:
                made = (line for line in part.read() if "error" not in line)
                on_disk = (line for line in made if not stores.is_store(line["image"]))
                Sidecars(request.sidecar).write(on_disk)
            take(part.marker.name)
            part.journal.unlink(missing_ok=True)
        elif part.marker.exists() and not stored:
            keep_part(request, local, part)
    write_lines(request.parts / HEADER, [header])


def _require_own(request: Request, plan: Plan) -> None:
    header = _header(request)
    if header is None or header["file"] != plan.header["file"]:
        again = "sees what is left" if request.keeps() else f"does {request.existing} once more"
        raise UserError(
            f"{request.address}: another machine has gone on with it or begun it anew; the same "
            f"command {again}"
        )


def _known(there: dict[str, Any], header: dict[str, Any], name: str) -> Any:
    return there.get(_named(header, name))


def _named(header: dict[str, Any], name: str) -> str:
    return f"{Path(header['file']).stem}.{name}"


def _address(request: Request, header: dict[str, Any], name: str) -> str:
    return f"{request.address}.parts/{_named(header, name)}"


def _header(request: Request) -> Optional[dict[str, Any]]:
    address = f"{request.address}.parts/{HEADER}"
    try:
        header = json.loads(stores.whole(address))
        if PurePosixPath(header["file"]).name != header["file"]:
            raise ValueError("a file out of the folder of parts")
        return header
    except stores.Missing:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{address} is damaged: drop the unfinished run with --restart") from error


def _refresh(request: Request, path: Path) -> None:
    """Let one file be what the store has."""
    try:
        stamp = stores.stamp(request.told(path))
    except stores.Missing:
        path.unlink(missing_ok=True)
        return
    if _record(request).get(path.name) != [_here(path), stamp]:
        fetch(request.told(path), path, stamp)
        _note(request, path, stamp)


def _note(request: Request, path: Path, stamp: Optional[list[Any]]) -> None:
    record = _record(request)
    record[path.name] = [_here(path), stamp]
    write_lines(request.out.with_name(RECORD), [record])


def _record(request: Request) -> dict[str, Any]:
    return next(read_lines(request.out.with_name(RECORD)), None) or {}


def _here(path: Path) -> Optional[list[int]]:
    if not path.exists():
        return None
    known = path.stat()
    return [known.st_size, known.st_mtime_ns]


@contextlib.contextmanager
def _nothing_lost(request: Request) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{error}; nothing is lost: what is captioned is in {request.parts}, and the same "
            "command goes on with it on this machine"
        ) from error
