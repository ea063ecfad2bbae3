"""Where the samples of a tar lie in it, and their captions: found once, and kept."""

import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Optional

from captioning.data.annotations import checked_row
from captioning.files import stores
from captioning.files.cache import cache_folder, cache_key
from captioning.files.images import is_image
from captioning.files.reading import parse_json, read_lines
from captioning.files.tars import LARGEST, Tar, is_sample, key_and_suffix
from captioning.files.writing import refusals_told, write_lines
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

VERSION = 1  # of the files that are kept
AT_ONCE = 16  # tars that are read at once: of a store, each waits for the network
LARGEST_TEXT = 1 << 24  # bytes of a member with captions

# {"image": its name in the tar, "at", "size": bytes, "captions"}, or {"error": line} of a sample
# that cannot be had.
Row = dict[str, Any]


def index_path(tar: str) -> Path:
    """The file that is kept of a tar: a line that sums it up, then one for each sample."""
    place = tar if stores.is_store(tar) else os.path.abspath(tar)
    return cache_folder() / "tars" / f"{cache_key(place, 32)}.jsonl"


def summaries(tars: list[str]) -> list[dict[str, Any]]:
    """The sum of each tar: how many `samples`, `captions` and `errors`, the `first` of these.

    Those that are not known, or have changed, are read. Raises UserError, and Stopped when asked.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(tars, pool.map(_known, tars)))
        others = [tar for tar, summary in found.items() if summary is None]
        if others:
            with progress(len(others), "looking into tars", unit="tar") as bar:
                for tar, summary in zip(others, pool.map(_looked_into, others)):
                    found[tar] = summary
                    bar.update()
    if signals.stop_requested():
        raise signals.Stopped
    return list(found.values())


def _known(tar: str) -> Optional[dict[str, Any]]:
    """What is kept of a tar, unless that has changed since."""
    known = next(read_lines(index_path(tar)), None)
    current = known and known["version"] == VERSION and known["stamp"] == stores.stamp(tar)
    return known if current else None


def _looked_into(tar: str) -> Optional[dict[str, Any]]:
    """Read a tar, and keep what it holds; None once the program is asked to stop."""
    if signals.stop_requested():
        return None
    path, stamp = index_path(tar), stores.stamp(tar)
    rows = _read(tar)
    captions = [len(row["captions"]) for row in rows if "error" not in row]
    errors = [row["error"] for row in rows if "error" in row]
    found = {"version": VERSION, "tar": tar, "stamp": stamp, "samples": len(captions)}
    found.update(captions=sum(captions), errors=len(errors), first=next(iter(errors), None))
    with refusals_told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, [found, *rows])
    return found


def read_rows(tar: str, summary: dict[str, Any]) -> list[Row]:
    """The samples of a tar that was summed up so. Raises UserError where it has changed since.

    Where what is kept is damaged, or of a tar that has this name on another machine, it is read.
    """
    rows = list(read_lines(index_path(tar)))
    if rows and None not in rows and rows[0]["stamp"] == summary["stamp"]:
        return rows[1:]
    if stores.stamp(tar) != summary["stamp"]:
        raise UserError(f"{tar}: it has changed since training began: start again")
    return _read(tar)


def _read(tar: str) -> list[Row]:
    """Its samples. Raises UserError where the disk or store does not give it."""
    try:
        with stores.opened(tar) as file:
            return list(rows_of(file, tar))
    except OSError as error:
        raise UserError(f"{tar}: cannot be read: {error.strerror or error}") from error


def rows_of(file: BinaryIO, tar: str) -> Iterator[Row]:
    """The samples of a tar in its order: members side by side whose names begin alike.

    One without an image is passed over; of several images the first counts. Captions are the lines
    of `.txt` or else `caption` or `captions` of `.json`.
    """
    keys: set[str] = set()
    key, members = None, {}
    try:
        for found, suffix, member in _members(file):
            if found != key:
                yield from _row(tar, key, members, keys)
                key, members = found, {}
            members.setdefault(suffix, []).append(member)
        yield from _row(tar, key, members, keys)
    except (tarfile.TarError, EOFError) as error:  # the sample before is not whole
        yield {"error": f"{tar}: cannot be read on: {error}"}


def _members(file: BinaryIO) -> Iterator[tuple[str, str, tuple[str, int, int, Optional[bytes]]]]:
    """Key, suffix, and name, place, size and text, where it is one, of every member."""
    with Tar.open(fileobj=file, mode="r:") as tar:
        for member in tar.each():
            if not member.isreg() or member.issparse() or not is_sample(member.name):
                continue
            key, suffix = key_and_suffix(member.name)
            if key is None:
                continue
            text = None
            if suffix in ("txt", "json") and member.size <= LARGEST_TEXT:
                text = tar.content(member)
            yield key, suffix, (member.name, member.offset_data, member.size, text)
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it has no end: it was cut off, or is damaged")


def _row(tar: str, key: Optional[str], members: dict, keys: set[str]) -> Iterator[Row]:
    images = [suffix for suffix in members if is_image(f"{key}.{suffix}")]
    if not images:
        return
    where = f"{tar}/{key}"
    name, at, size, _ = members[images[0]][0]
    if key in keys or any(len(alike) > 1 for alike in members.values()):
        yield {"error": f"{where}: two samples have this key: rename one"}
    elif size > LARGEST:
        yield {"error": f"{where}: {size:,} bytes, too many for an image"}
    else:
        try:
            yield {"image": name, "at": at, "size": size, "captions": _captions(members, where)}
        except UserError as error:
            yield {"error": str(error)}
    keys.add(key)


def _captions(members: dict, where: str) -> list[str]:
    texts = {suffix: alike[0][3] for suffix, alike in members.items()}
    fields: Any = {}
    try:
        if texts.get("txt") is not None:
            fields = {"captions": texts["txt"].decode("utf-8-sig").split("\n")}
        elif texts.get("json") is not None:
            fields = parse_json(texts["json"].decode("utf-8-sig"), f"{where}.json")
    except UnicodeDecodeError:
        raise UserError(f"{where}: its captions are not UTF-8 text") from None
    if isinstance(fields, dict):
        fields = {**fields, "image": where}
        fields.pop("image_id", None)
    _, captions, _ = checked_row(fields, where)
    if not captions:
        raise UserError(f"{where} has no caption: add one")
    return [caption.strip() for caption in captions]
