"""Recognises image files by name, and finds them in folders on disk and in stores."""

import os
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
}
SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)


def is_image(name: str) -> bool:
    """Return whether a file's name has the suffix of an image. Case does not matter."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def images_in(folder: str, recursive: bool = True, glob: Optional[str] = None) -> Iterator[str]:
    """Yield the paths of a folder's images, sorted by name, without hidden files.

    glob: a pattern that selects the files; they may then have any suffix. A pattern with a slash is
    compared with the path relative to `folder`, another pattern with the file name. A symbolic link
    is followed, unless it leads to a folder that contains the link. Raises UserError.
    """
    if not stores.is_store(folder):
        yield from _in_folder(folder, "", recursive, glob, frozenset())
        return
    folder = folder.rstrip("/")
    for address in stores.list_files(folder, recursive):
        relative = address[len(folder) + 1 :]
        if "/." not in f"/{relative}" and _is_wanted(relative, glob):
            yield address


def _is_wanted(relative: str, glob: Optional[str]) -> bool:
    if glob is None:
        return is_image(relative)
    return fnmatch(relative if "/" in glob else os.path.basename(relative), glob)


def _is_folder(entry: os.DirEntry) -> bool:
    """Return whether it is a folder. A link that cannot be followed counts as a file."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _in_folder(folder, relative_folder, recursive, glob, ancestors) -> Iterator[str]:
    """Yield the wanted files in a folder.

    relative_folder: the path of the folder relative to the folder of `images_in`. ancestors:
    (device, inode) of the folders that contain this folder, to detect cycles of links.
    """
    state = os.stat(folder)
    if (state.st_dev, state.st_ino) in ancestors:
        return
    ancestors |= {(state.st_dev, state.st_ino)}
    try:
        with os.scandir(folder) as found:
            entries = sorted((entry.name, _is_folder(entry)) for entry in found)
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}") from error
    for name, is_folder in entries:
        if name.startswith("."):
            continue
        path, relative = os.path.join(folder, name), os.path.join(relative_folder, name)
        if not is_folder and _is_wanted(relative, glob):
            yield path
        elif is_folder and recursive:
            yield from _in_folder(path, relative, recursive, glob, ancestors)
