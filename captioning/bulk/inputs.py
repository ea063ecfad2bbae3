"""Which images a call is about: a photo, those of a folder or of a list."""

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Optional

from captioning.bulk.job import Job
from captioning.bulk.lists import SUFFIXES, Item, read_list
from captioning.metrics.pool import IMAGE_SUFFIXES
from captioning.runtime.errors import UserError


def find_images(job: Job) -> Iterator[Item]:
    """Each image once, those of a folder in the order of their names. Raises UserError.

    Whether a file is an image is seen when it is read. In a folder those with an image's suffix
    are meant, or those that `glob` matches: by name, or, with a slash in it, by the path from the
    folder. Hidden files are passed over.
    """
    source = Path(job.source)
    is_list = source.suffix in SUFFIXES
    if not source.exists():
        raise UserError(f"{source}: no such photo, folder or list")
    for name, given in {"--glob": job.glob, "--no-recursive": not job.recursive}.items():
        if given and not source.is_dir():
            raise UserError(f"{name} is for a folder, and {source} is none")
    for name, given in {"--root": job.root, "--column": job.column}.items():
        if given and not is_list:
            raise UserError(f"{name} is for a list, and {source} is none")
    if source.is_dir():
        return (Item(path) for path in _in_folder(job.source, "", job.recursive, job.glob, set()))
    return _once(read_list(source, job.root, job.column)) if is_list else iter([Item(job.source)])


def _once(items: Iterator[Item]) -> Iterator[Item]:
    """A file of annotations names an image once for each of its captions."""
    seen: set[str] = set()
    for item in items:
        if item.image not in seen:
            seen.add(item.image)
            yield item


def _in_folder(
    folder: str, within: str, recursive: bool, glob: Optional[str], above: set[tuple[int, int]]
) -> Iterator[str]:
    state = os.stat(folder)
    if (state.st_dev, state.st_ino) in above:
        return  # a link to a folder that it lies in
    above = {*above, (state.st_dev, state.st_ino)}
    try:
        with os.scandir(folder) as found:
            entries = sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}") from error
    for name, is_folder in entries:
        if name.startswith("."):
            continue
        path, relative = os.path.join(folder, name), os.path.join(within, name)
        if is_folder:
            if recursive:
                yield from _in_folder(path, relative, recursive, glob, above)
        elif _is_meant(name, relative, glob):
            yield path


def _is_meant(name: str, relative: str, glob: Optional[str]) -> bool:
    if glob is None:
        return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
    return fnmatch(relative if "/" in glob else name, glob)
