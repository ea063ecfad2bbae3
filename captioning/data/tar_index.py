"""Builds and caches the index of a tar: the positions and captions of the samples in the tar."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Optional, TypedDict, Union

from captioning.files import stores
from captioning.files.cache import cache_folder, cache_key
from captioning.files.columns import prompt_of
from captioning.files.reading import read_lines
from captioning.files.tars import BrokenTar, Sample, samples
from captioning.files.writing import user_errors, write_lines
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

VERSION = 3  # format of the cached files; a file of another version is rebuilt
AT_ONCE = 16  # tars to read concurrently; reading from a store waits for the network


class TarSummary(TypedDict):
    """The first line of an index. version and stamp tell whether the index is valid."""

    version: int
    stamp: stores.Stamp  # of the tar
    samples: int
    captions: int
    prompts: int  # samples with a prompt
    errors: int  # samples that cannot be used
    first: Optional[str]  # the first error
    left_out: list[str]  # images that are not used, see `tars.samples`


class IndexRow(TypedDict, total=False):
    """A further line of an index: a sample, or the error of a sample that cannot be used."""

    image: str  # name in the tar
    position: int  # of the image's first byte
    size: int  # bytes of the image
    captions: list[str]
    prompt: Optional[str]
    error: str  # the only key of a sample that cannot be used


class TarSample(NamedTuple):
    """A sample in a tar, with the position of its image; see `annotations.Sample`."""

    image: str  # the tar's path, a slash and the name in it
    captions: tuple[str, ...]
    image_id: str  # the same as image
    span: stores.ByteRange  # of the image in the tar
    prompt: Optional[str] = None


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
    path, stamp, left_out = index_path(tar), stores.stamp(tar), []
    rows = _index_rows(tar, left_out)
    good = [row for row in rows if "error" not in row]
    summary = TarSummary(
        version=VERSION,
        stamp=stamp,
        samples=len(good),
        captions=sum(len(row["captions"]) for row in good),
        prompts=sum(row["prompt"] is not None for row in good),
        errors=len(rows) - len(good),
        first=next((row["error"] for row in rows if "error" in row), None),
        left_out=left_out,
    )
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, [summary, *rows])
    return summary


def read_rows(tar: str, summary: TarSummary) -> list[Union[TarSample, str]]:
    """Return the samples of a tar, and the errors of those that cannot be used.

    The tar itself is read if its index is damaged, or if another machine that shares the cache
    folder has indexed another tar under the same path. Raises UserError if the tar has changed
    since `summary`.
    """
    first, *rows = [*read_lines(index_path(tar))] or [None]
    if not first or None in rows or first["stamp"] != summary["stamp"]:
        if stores.stamp(tar) != summary["stamp"]:
            raise UserError(f"{tar}: it has changed since training began: start again")
        rows = _index_rows(tar, [])
    return [row["error"] if "error" in row else _sample_of(tar, row) for row in rows]


def _sample_of(tar: str, row: IndexRow) -> TarSample:
    name, span = f"{tar}/{row['image']}", stores.ByteRange(tar, row["position"], row["size"])
    return TarSample(name, tuple(row["captions"]), name, span, row["prompt"])


def _index_rows(tar: str, left_out: list[str]) -> list[IndexRow]:
    """Read the samples of a tar. left_out: see `tars.samples`. Raises UserError."""
    rows = []
    try:
        for sample in samples(tar, with_data=False, left_out=left_out):
            rows.append(_index_row(sample, tar))
    except BrokenTar as error:
        rows.append({"error": str(error)})
    return rows


def _index_row(sample: Sample, tar: str) -> IndexRow:
    captions = [text.strip() for text in sample.row.get("captions", ()) if text.strip()]
    if sample.error or not captions:
        return {"error": sample.error or f"{tar}/{sample.key} has no caption: add one"}
    try:
        prompt = prompt_of(sample.row)
    except UserError as error:
        return {"error": str(error)}
    return IndexRow(
        image=sample.name[len(tar) + 1 :],
        position=sample.position,
        size=sample.size,
        captions=captions,
        prompt=prompt,
    )
