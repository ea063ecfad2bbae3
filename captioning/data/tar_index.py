"""Builds and caches the index of a tar: the positions and captions of the samples in the tar."""

import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Optional, TypedDict

from captioning.data.annotations import checked_row
from captioning.files import stores
from captioning.files.cache import cache_folder, cache_key
from captioning.files.image_lists import prompt_field
from captioning.files.images import is_image
from captioning.files.reading import parse_json, read_lines
from captioning.files.tars import MAX_MEMBER_BYTES, MAX_TEXT_BYTES, Tar
from captioning.files.writing import user_errors, write_lines
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

VERSION = 2  # format of the cached files; a file of another version is rebuilt
AT_ONCE = 16  # tars to read concurrently; reading from a store waits for the network


class TarSummary(TypedDict):
    """The first line of an index. version and stamp tell whether the index is valid."""

    version: int
    stamp: stores.Stamp  # of the tar
    samples: int
    captions: int
    errors: int  # samples that cannot be used
    first: Optional[str]  # the first error
    prompts: int  # samples with a prompt


class IndexRow(TypedDict, total=False):
    """A sample of a tar, or the error of a sample that cannot be used."""

    image: str  # name in the tar
    at: int  # the image's first byte
    size: int  # bytes of the image
    captions: list[str]
    prompt: str  # left out without a prompt
    error: str  # an error line; the only key


def index_path(tar: str) -> Path:
    """Return the path of a tar's cached index: a line with its summary, then a line per sample."""
    location = tar if stores.is_store(tar) else os.path.abspath(tar)
    return cache_folder() / "tars" / f"{cache_key(location, 32)}.jsonl"


def summaries(tars: list[str]) -> list[TarSummary]:
    """Return the summary of each tar, from its cached index if possible.

    A tar that has no index, or has changed since it was indexed, is read. Raises UserError, and
    Stopped if a stop is requested.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(_cached_summary, tars))
        missing = [number for number, summary in enumerate(found) if summary is None]
        if missing:
            with progress(len(missing), "indexing tars", unit="tar") as bar:
                built = pool.map(_build_index, [tars[number] for number in missing])
                for number, summary in zip(missing, built):
                    found[number] = summary
                    bar.update()
    if signals.stop_requested():
        raise signals.Stopped
    return found


def _cached_summary(tar: str) -> Optional[TarSummary]:
    """Return the cached summary of a tar; None if the tar is not indexed or has changed since."""
    summary = next(read_lines(index_path(tar)), None)
    if summary and summary["version"] == VERSION and summary["stamp"] == stores.stamp(tar):
        return summary
    return None


def _build_index(tar: str) -> Optional[TarSummary]:
    """Read a tar, write its index and return its summary. Returns None after a stop request."""
    if signals.stop_requested():
        return None
    path, stamp = index_path(tar), stores.stamp(tar)
    rows = _read_samples(tar)
    captions = [len(row["captions"]) for row in rows if "error" not in row]
    errors = [row["error"] for row in rows if "error" in row]
    summary = TarSummary(
        version=VERSION,
        stamp=stamp,
        samples=len(captions),
        captions=sum(captions),
        errors=len(errors),
        first=errors[0] if errors else None,
        prompts=sum("prompt" in row for row in rows),
    )
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, [summary, *rows])
    return summary


def read_rows(tar: str, summary: TarSummary) -> list[IndexRow]:
    """Return the samples of a tar. Raises UserError if the tar has changed since `summary`.

    The tar itself is read if its index is damaged, or if another machine that shares the cache
    folder has indexed another tar under the same path.
    """
    rows = list(read_lines(index_path(tar)))
    if rows and None not in rows and rows[0]["stamp"] == summary["stamp"]:
        return rows[1:]
    if stores.stamp(tar) != summary["stamp"]:
        raise UserError(f"{tar}: it has changed since training began: start again")
    return _read_samples(tar)


def _read_samples(tar: str) -> list[IndexRow]:
    """Read the samples of a tar. Raises UserError if the disk or the store fails."""
    with stores.read_errors(tar), stores.open_file(tar) as file:
        return list(_rows_of_members(file, tar))


def _rows_of_members(file: BinaryIO, tar: str) -> Iterator[IndexRow]:
    """Yield the samples of a tar. A sample consists of adjacent members with the same key.

    The key is the member's name without its suffix, which begins at the first dot. A sample without
    an image is skipped. If a sample has several images, the first is used. The captions are the
    lines of a `.txt` member, or `caption` or `captions` of a `.json` member, which may also have a
    `prompt`.
    """
    keys = set()
    key, members = "", {}  # {suffix: [(member, content of a .txt or .json member, else None)]}
    try:
        with Tar.open(fileobj=file, mode="r:") as opened:
            for member_key, suffix, member in opened.each():
                if member.issparse():
                    continue
                if member_key != key:
                    yield from _row_of_sample(tar, key, members, keys)
                    key, members = member_key, {}
                is_text = suffix in ("txt", "json") and member.size <= MAX_TEXT_BYTES
                text = opened.content(member) if is_text else None
                members.setdefault(suffix, []).append((member, text))
            file.seek(opened.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("it has no end marker: it was cut off or is damaged")
        yield from _row_of_sample(tar, key, members, keys)
    except (tarfile.TarError, EOFError) as error:  # drops the last sample: it may be incomplete
        yield {"error": f"{tar}: the rest cannot be read: {error}"}


def _row_of_sample(tar: str, key: str, members: dict, keys: set[str]) -> Iterator[IndexRow]:
    """Yield the row of a sample, if it has an image, and add its key to `keys`.

    members: see `_rows_of_members`. keys: the keys of the earlier samples, to detect repeated keys.
    """
    images = [alike[0] for suffix, alike in members.items() if is_image(f"{key}.{suffix}")]
    if not images:
        return
    where, (image, _) = f"{tar}/{key}", images[0]
    if key in keys or any(len(alike) > 1 for alike in members.values()):
        yield {"error": f"{where}: two samples have this key: rename one"}
    elif image.size > MAX_MEMBER_BYTES:
        yield {
            "error": f"{where}: the image has {image.size:,} bytes, more than {MAX_MEMBER_BYTES:,}"
        }
    else:
        texts = {suffix: text for suffix, [(_, text), *_] in members.items()}
        place = {"image": image.name, "at": image.offset_data, "size": image.size}
        try:
            yield {**place, **_captions_and_prompt(texts, where)}
        except UserError as error:
            yield {"error": str(error)}
    keys.add(key)


def _captions_and_prompt(texts: dict[str, Optional[bytes]], where: str) -> dict[str, Any]:
    """Return {"captions": list} of a sample, and "prompt" if it has one. Raises UserError.

    texts: {suffix: content}.
    """
    fields = {}
    try:
        if texts.get("json") is not None:
            fields = parse_json(texts["json"].decode("utf-8-sig"), f"{where}.json")
        prompt = prompt_field(fields, where) if isinstance(fields, dict) else None
        if texts.get("txt") is not None:
            fields = {"captions": texts["txt"].decode("utf-8-sig").split("\n")}
    except UnicodeDecodeError:
        raise UserError(f"{where}: its captions are not UTF-8 text") from None
    if isinstance(fields, dict):
        fields = {**fields, "image": where, "image_id": None}
    captions = checked_row(fields, where).captions
    if not captions:
        raise UserError(f"{where} has no caption: add one")
    found = {"captions": [caption.strip() for caption in captions]}
    return {**found, "prompt": prompt} if prompt else found
