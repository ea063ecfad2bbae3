"""Builds and caches the index of a tar: the positions and captions of the samples in the tar."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from captioning.data.annotations import Sample
from captioning.files import stores, tars
from captioning.files.cache import cache_folder, cache_key
from captioning.files.columns import prompt_of
from captioning.files.writing import atomic_write, json_line, user_errors
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

VERSION = 5  # format of the cached files
AT_ONCE = 16  # tars to read concurrently; reading from a store waits for the network

# The first line of an index: the numbers of `samples`, `captions` and samples with `prompts`, the
# `errors` of samples that cannot be used, and the names of the files that are `left_out`, see
# `tars.samples`. `summaries` adds the name of the `tar` and the `path` of the index.
Summary = dict[str, Any]
# A further line: name in the tar, captions, prompt, and position and size of the image in the tar.
IndexRow = tuple[str, list[str], str, int, int]


def index_path(tar: str) -> Path:
    """Return the path of the cached index of a tar in its present state. Raises UserError."""
    key = cache_key(repr((VERSION, stores.key_of(tar), stores.stamp(tar))), 32)
    return cache_folder() / "tars" / f"{key}.jsonl"


def summaries(names: list[str]) -> list[Summary]:
    """Return the summary of each tar. Tars that have no index are read.

    Raises UserError, and Stopped if a stop is requested.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        paths = dict(zip(names, pool.map(index_path, names)))
        missing = {tar: path for tar, path in paths.items() if not path.exists()}
        if missing:
            with progress(len(missing), "indexing tars", unit="tar") as bar:
                for _ in pool.map(_build_index, missing, missing.values()):
                    bar.update()
    signals.raise_if_requested()
    return [{**next(_lines(path)), "tar": tar, "path": path} for tar, path in paths.items()]


def read_samples(summary: Summary) -> list[Sample]:
    """Return the samples of a tar. Raises UserError, for example if the index was removed."""
    tar, path, samples = summary["tar"], summary["path"], []
    with stores.read_errors(path):
        for name, captions, prompt, *span in islice(_lines(path), 1, None):
            name, span = f"{tar}/{name}", stores.ByteRange(tar, *span)
            samples.append(Sample(name, tuple(captions), name, prompt, span))
    return samples


def _lines(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        yield from map(json.loads, file)


def _build_index(tar: str, path: Path) -> None:
    """Read a tar and write its index, unless a stop is requested. Raises UserError."""
    if signals.stop_requested():
        return
    rows, errors, left_out = [], [], []
    try:
        for sample in tars.samples(tar, with_data=False, left_out=left_out):
            try:
                rows.append(_row_of(sample, tar))
            except UserError as error:
                errors.append(str(error))
    except tars.BrokenTar as error:
        errors.append(str(error))
    summary = {
        "samples": len(rows),
        "captions": sum(len(captions) for _, captions, *_ in rows),
        "prompts": sum(bool(prompt) for _, _, prompt, *_ in rows),
        "errors": errors,
        "left_out": left_out,
    }
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.writelines(map(json_line, [summary, *rows]))


def _row_of(sample: tars.Sample, tar: str) -> IndexRow:
    row = sample.row
    captions = [text.strip() for text in row.get("captions", ()) if text.strip()]
    if not captions:
        raise UserError(f"{sample.name} has no caption: add one")
    name = sample.name[len(tar) + 1 :]
    return name, captions, prompt_of(row), sample.position, sample.size
