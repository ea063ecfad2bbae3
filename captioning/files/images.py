"""Recognises image files by name, and finds them in folders on disk and in stores."""

import os
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Optional

from captioning.files import stores
from captioning.runtime.errors import UserError

# {Pillow's name of a supported format: its file suffixes}. EPS is not supported, because Pillow
# would let Ghostscript run the program that an EPS file contains.
FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2", ".j2k", ".jpx"),
    "HEIF": (".heic", ".heif"),  # where pillow-heif is installed
}
SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)


def is_image(name: str) -> bool:
    """Return whether a file's name has the suffix of an image. Case does not matter."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def images_in(
    folder: str,
    recursive: bool = True,
    glob: Optional[str] = None,
    left_out: Optional[Counter[str]] = None,
) -> Iterator[str]:
    """Yield the paths of a folder's images, sorted by name, without hidden files.

    glob: a pattern that selects the files; they may then have any suffix. A pattern with a slash is
    compared with the path relative to `folder`, another pattern with the file name. left_out:
    counts the files that are not yielded, by suffix. Symbolic links are followed. Raises UserError,
    also for a link to a folder that contains the link.
    """
    folder = folder.rstrip("/") or "/"
    if stores.is_store(folder):
        files = (name[len(folder) + 1 :] for name in stores.list_files(folder, recursive))
        files = (name for name in files if "/." not in f"/{name}")
    else:
        files = _files_in(folder, "", recursive)
    for name in files:
        is_wanted = is_image(name)
        if glob is not None:
            is_wanted = fnmatch(name if "/" in glob else os.path.basename(name), glob)
        if is_wanted:
            yield os.path.join(folder, name)
        elif left_out is not None:
            left_out[os.path.splitext(name)[1] or os.path.basename(name)] += 1


def kinds_of(left_out: Counter[str]) -> str:
    """Return a line about the files that `images_in` has left out."""
    kinds = (f"{number} {suffix}" for suffix, number in sorted(left_out.items()))
    return f"left out, not taken for images: {', '.join(kinds)}"


def _files_in(folder: str, relative: str, recursive: bool) -> Iterator[str]:
    """Yield the names of files in `folder`/`relative`, relative to `folder`."""
    place = os.path.join(folder, relative)
    try:
        with os.scandir(place) as iterator:
            entries = sorted((entry.name, entry.is_dir()) for entry in iterator)
    except OSError as error:
        raise UserError(f"cannot read the folder {place}: {error.strerror}") from error
    for name, is_folder in entries:
        path = os.path.join(relative, name)
        if name.startswith("."):
            continue
        if not is_folder:
            yield path
        elif recursive:
            yield from _files_in(folder, path, recursive)
