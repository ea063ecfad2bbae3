"""Keeps captions files in an object store: writes local copies, and uploads finished files.

A store can neither rename a file nor append to a file. Therefore a run goes through these steps:

1. Upload the plan to ADDRESS.parts, its header last.
2. Upload the captions, then the marker, of each finished shard to ADDRESS.parts. The file names
   begin with the plan's name, so that the files of two plans are never confused.
3. Upload `failed`, `filtered`, `out` and `marker`, in this order.
4. Remove the plan from the store, its header first.

If a machine is lost, another machine continues from the uploaded files. Journals of unfinished
shards stay on the local disk and are lost with it.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from captioning.bulk.request import Request, stamp_if_any
from captioning.bulk.shards import (
    BASE,
    HEADER,
    Plan,
    PlanHeader,
    ShardFiles,
    find_plan,
    remove_plan,
)
from captioning.files import stores, uploads
from captioning.files.cache import cache_folder, cache_key, fetch
from captioning.files.reading import read_lines
from captioning.files.writing import write_lines
from captioning.runtime.errors import UserError

RECORD = "stored.json"  # {name: [stamp of the local copy, stamp of the stored file]} of equal files


def local_path_and_address(out: str) -> tuple[Path, Optional[str]]:
    """Return the local path for the value of --out, and its store address (None for a disk path).

    Raises UserError for an address that does not name a file.
    """
    stores.check_names_file("--out", out)
    if not stores.is_bucket_address(out):
        return Path(out), None
    return cache_folder() / "captions" / cache_key(out, 16) / PurePosixPath(out).name, out


def begin(request: Request, restart: bool) -> None:
    """Update the local copies from the store, and continue or remove an unfinished plan.

    The plan may be on this machine, in the store, or both. restart: the value of --restart. Raises
    UserError.
    """
    remote = stores.stamps(f"{request.address}.parts")
    try:
        header = _read_header(request) if HEADER in remote else None
    except UserError:  # the header is damaged
        if not restart:
            raise
        header = None
    if header and restart:
        request.remove_tars(header)
    if header and (restart or _name_in_store(header, header["file"]) not in remote):
        header = None
    local = find_plan(request.parts)
    if not (local and header and local.header["file"] == header["file"]):
        remove_plan(request.parts)  # also removes what an interrupted removal has left
        local = None
    # A plan in the store without finished shards can be replaced by a new plan, unless the run
    # writes sidecars or tars: a lost machine may have written some, and a new plan would take them
    # for outputs of another program.
    beside = request.sidecar or request.write_shards
    if local or (header and (beside or any(name.endswith(".done") for name in remote))):
        _exchange_shards(request, header, local, remote)
    elif remote:
        remove(request)
    for path in request.outputs:
        _refresh(request, path)


def upload_plan(request: Request, plan: Plan) -> None:
    """Upload a new plan. Raises UserError."""
    with _explain_upload_errors(request):
        for name in (plan.header["file"], BASE):
            if (request.parts / name).exists():
                uploads.upload(request.parts / name, _address_of(request, plan.header, name))
        uploads.upload(request.parts / HEADER, f"{request.address}.parts/{HEADER}")


def upload_shard(request: Request, plan: Plan, shard: ShardFiles) -> None:
    """Upload the captions and the marker of a finished shard.

    Raises UserError if the upload fails or the store now has another plan.
    """
    _require_own_plan(request, plan)
    with _explain_upload_errors(request):
        for path in (shard.captions, shard.marker):
            uploads.upload(path, _address_of(request, plan.header, path.name))


def before_merging(request: Request, plan: Plan) -> None:
    """Download `failed` again if the store has another version.

    Raises UserError if the store now has another plan.
    """
    _require_own_plan(request, plan)
    _refresh(request, request.failed)


def upload_captions(request: Request, plan: Plan) -> None:
    """Upload the merged files, the marker last.

    Raises UserError if the upload fails or the store now has another plan.
    """
    _require_own_plan(request, plan)  # again, because merging may have taken long
    with _explain_upload_errors(request):
        for path in request.outputs:
            stamp = uploads.upload(path, request.location(path)) if path.exists() else None
            if stamp is None:
                uploads.remove(request.location(path))
            _record_copy(request, path, stamp)


def remove(request: Request) -> None:
    """Remove the plan and its shards from the store, the header first. Raises UserError."""
    uploads.remove(f"{request.address}.parts/{HEADER}")
    uploads.remove_folder(f"{request.address}.parts")


def _exchange_shards(
    request: Request, header: PlanHeader, local: Optional[Plan], remote: dict[str, stores.Stamp]
) -> None:
    """Download finished shards that are missing here; upload finished shards missing in the store.

    header: the plan's header in the store. local: the same plan on this machine, if any. remote:
    the stamps of the files in ADDRESS.parts by name.
    """

    def download(name: str) -> None:
        stamp = remote.get(_name_in_store(header, name))
        if stamp is not None:
            fetch(_address_of(request, header, name), request.parts / name, stamp)

    if local is None:
        download(BASE)
        download(header["file"])
        local = Plan(request.parts, header)
    for shard in local.shards():
        is_stored = _name_in_store(header, shard.marker.name) in remote
        if is_stored and not shard.marker.exists():
            download(shard.captions.name)
            if request.sidecar:
                lines = request.kept(shard.read())
                on_disk = (line for line in lines if not stores.is_store(line["image"]))
                request.sidecars().write(on_disk)
            download(shard.marker.name)
            shard.journal.unlink(missing_ok=True)
        elif shard.marker.exists() and not is_stored:
            upload_shard(request, local, shard)
    write_lines(request.parts / HEADER, [header])


def _require_own_plan(request: Request, plan: Plan) -> None:
    header = _read_header(request)
    if header is None or header["file"] != plan.header["file"]:
        again = "captions what is left" if request.skips_existing else "overwrites them again"
        raise UserError(
            f"{request.address}: another machine has continued or restarted this run; the same "
            f"command {again}"
        )


def _name_in_store(header: PlanHeader, name: str) -> str:
    """Return the store name of a plan's file: its local name after the plan's name."""
    return f"{Path(header['file']).stem}.{name}"


def _address_of(request: Request, header: PlanHeader, name: str) -> str:
    return f"{request.address}.parts/{_name_in_store(header, name)}"


def _read_header(request: Request) -> Optional[PlanHeader]:
    address = f"{request.address}.parts/{HEADER}"
    try:
        header = json.loads(stores.read_bytes(address))
        if PurePosixPath(header["file"]).name != header["file"]:
            raise ValueError("the file is outside the folder of parts")
        return header
    except stores.Missing:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{address} is damaged: abandon the unfinished run with --restart"
        ) from error


def _refresh(request: Request, path: Path) -> None:
    """Download an output file, unless the local copy is the same version.

    If the store does not have the file, remove the local copy.
    """
    try:
        stamp = stores.stamp(request.location(path))
    except stores.Missing:
        path.unlink(missing_ok=True)
        return
    if _records(request).get(path.name) != [stamp_if_any(str(path)), stamp]:
        fetch(request.location(path), path, stamp)
        _record_copy(request, path, stamp)


def _record_copy(request: Request, path: Path, stamp: Optional[stores.Stamp]) -> None:
    records = _records(request)
    records[path.name] = [stamp_if_any(str(path)), stamp]
    write_lines(request.out.with_name(RECORD), [records])


def _records(request: Request) -> dict[str, Any]:
    return next(read_lines(request.out.with_name(RECORD)), None) or {}


@contextlib.contextmanager
def _explain_upload_errors(request: Request) -> Iterator[None]:
    """Within the block, add to a UserError where the captions are on the local disk."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{error}; nothing is lost: the captions so far are in {request.parts}; run the same "
            "command again on this machine to continue"
        ) from error
