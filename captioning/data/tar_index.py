"""Builds and caches the index of a tar: the positions and captions of the samples in the tar."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional, Union

from captioning.data.annotations import Sample
from captioning.files import stores
from captioning.files.cache import cache_folder, cache_key
from captioning.files.columns import prompt_of
from captioning.files.reading import read_lines
from captioning.files.tars import BrokenTar, samples
from captioning.files.writing import user_errors, write_lines
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

VERSION = 4  # format of the cached files; a file of another version is rebuilt
AT_ONCE = 16  # tars to read concurrently; reading from a store waits for the network

# The first line of an index: the `version` of the format and the `stamp` of the tar, the numbers of
# `samples`, `captions`, samples with `prompts` and `errors`, the `first` error or None, and the
# names of the files that are `left_out`, see `tars.samples`.
Summary = dict[str, Any]
# A further line: `image`, its name in the tar, and its `position` and `size` there, `captions` and
# `prompt`. Of a sample that cannot be used, only its `error`.
IndexRow = dict[str, Any]


def index_path(tar: str) -> Path:
    """Return the path of a tar's cached index: a line with its summary, then a line per sample."""
    location = tar if stores.is_store(tar) else os.path.abspath(tar)
    return cache_folder() / "tars" / f"{cache_key(location, 32)}.jsonl"


def summaries(tars: list[str]) -> list[Summary]:
    """Return the summary of each tar, from its cached index if possible.

    A tar that has no index, or has changed since it was indexed, is read. Raises UserError, and
    Stopped if a stop is requested.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        by_tar = dict(zip(tars, pool.map(_cached_summary, tars)))
        missing = [tar for tar, summary in by_tar.items() if summary is None]
        if missing:
            with progress(len(missing), "indexing tars", unit="tar") as bar:
                for tar, summary in zip(missing, pool.map(_build_index, missing)):
                    by_tar[tar] = summary
                    bar.update()
    signals.raise_if_requested()
    return list(by_tar.values())


def _cached_summary(tar: str) -> Optional[Summary]:
    """Return the cached summary of a tar; None if the tar is not indexed or has changed since."""
    summary = next(read_lines(index_path(tar)), None)
    is_valid = summary and (summary["version"], summary["stamp"]) == (VERSION, stores.stamp(tar))
    return summary if is_valid else None


def _build_index(tar: str) -> Optional[Summary]:
    """Read a tar, write its index and return its summary. Returns None after a stop request."""
    if signals.stop_requested():
        return None
    path, stamp, left_out = index_path(tar), stores.stamp(tar), []
    rows = list(_index_rows(tar, left_out))
    errors = [row["error"] for row in rows if "error" in row]
    summary = {
        "version": VERSION,
        "stamp": stamp,
        "samples": len(rows) - len(errors),
        "captions": sum(len(row.get("captions", ())) for row in rows),
        "prompts": sum(bool(row.get("prompt")) for row in rows),
        "errors": len(errors),
        "first": next(iter(errors), None),
        "left_out": left_out,
    }
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, [summary, *rows])
    return summary


def _index_rows(tar: str, left_out: list[str]) -> Iterator[IndexRow]:
    """Yield the samples of a tar. left_out: see `tars.samples`. Raises UserError."""
    try:
        for sample in samples(tar, with_data=False, left_out=left_out):
            place = {"image": sample.name[len(tar) + 1 :], "position": sample.position}
            try:
                row = sample.row
                captions = [text.strip() for text in row.get("captions", ()) if text.strip()]
                if not captions:
                    raise UserError(f"{sample.name} has no caption: add one")
                texts = {"captions": captions, "prompt": prompt_of(row)}
                yield {**place, "size": sample.size, **texts}
            except UserError as error:
                yield {"error": str(error)}
    except BrokenTar as error:
        yield {"error": str(error)}


def read_rows(tar: str, summary: Summary) -> list[Union[Sample, str]]:
    """Return the samples of a tar, and the errors of those that cannot be used.

    The tar itself is read if its index is damaged, or if another machine that shares the cache
    folder has indexed another tar under the same path. Raises UserError if the tar has changed
    since `summary`.
    """
    first, *rows = [*read_lines(index_path(tar))] or [None]
    if None in (first, *rows) or first["stamp"] != summary["stamp"]:
        if stores.stamp(tar) != summary["stamp"]:
            raise UserError(f"{tar}: it has changed since training began: start again")
        rows = _index_rows(tar, [])
    return [row.get("error") or _sample_of(tar, row) for row in rows]


def _sample_of(tar: str, row: IndexRow) -> Sample:
    name, span = f"{tar}/{row['image']}", stores.ByteRange(tar, row["position"], row["size"])
    return Sample(name, tuple(row["captions"]), name, row["prompt"], span)
