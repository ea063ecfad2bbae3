"""Text files beside photos, a line a caption, on disk or in a store."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from captioning.bulk.shards import Line, captions_of
from captioning.files import stores, uploads
from captioning.files.writing import replace_text
from captioning.runtime.errors import UserError

AT_ONCE = 16  # files of a store that are written, or asked for, at a time


class Sidecars:
    """Those of one call. extension: of their names, which are else those of the photos. kept: files
    that none may replace."""

    def __init__(self, extension: str, kept: Iterable[str] = ()):
        self.extension = extension
        self.kept = {os.path.realpath(path) for path in kept}
        self._kept_names = set(map(os.path.basename, self.kept))
        self.images: dict[str, str] = {}  # by sidecar
        self.known: dict[str, set[str]] = {}  # by folder, of a store

    def of(self, image: str) -> str:
        return os.path.splitext(image)[0] + self.extension

    def _is_kept(self, path: str) -> bool:
        return os.path.basename(path) in self._kept_names and os.path.realpath(path) in self.kept

    def look(self, image: str, read: bool) -> list[str]:
        """The captions beside an image, a line each; none where there is none, or an empty one.

        read: whether it matters what they are; else a store is asked for names alone. Raises
        UserError where the sidecar is an input or output or another image's, too, or could not be
        written.
        """
        sidecar = self.of(image)
        # The name of every image that is a sidecar ends so.
        if image.lower().endswith(self.extension.lower()) or self._is_kept(sidecar):
            raise UserError(
                f"{image}: its sidecar {sidecar} would replace a file that is read or written: "
                f"name another --sidecar than {self.extension}"
            )
        other = self.images.setdefault(sidecar, image)
        if other != image:
            raise UserError(
                f"{other} and {image} would both have the sidecar {sidecar}: rename one"
            )
        folder = os.path.dirname(image) or "."
        if folder not in self.known:
            self.known[folder] = self._names(folder)
        if not stores.is_store(sidecar):
            return _read(sidecar)
        if sidecar not in self.known[folder]:
            return []
        return _lines(stores.whole(sidecar)) if read else ["there is one"]

    def write(self, lines: Iterable[Line]) -> None:
        """Write those of all lines, each whole or not there. Raises OSError, UserError.

        Those on disk are not synced: it would take longer for that than a GPU for the caption.
        """
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            begun = []
            for line in lines:
                sidecar = self.of(line["image"])
                text = "".join(f"{caption}\n" for caption in captions_of(line))
                if stores.is_store(sidecar):
                    begun.append(pool.submit(uploads.put, text.encode(), sidecar))
                else:
                    replace_text(text, Path(sidecar))
            for each in begun:
                each.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _names(self, folder: str) -> set[str]:
        """What a store has there of them; looks whether they can be written."""
        if stores.has_folders(folder):
            return {name for name in stores.listed(folder, False) if name.endswith(self.extension)}
        if stores.is_store(folder):
            raise UserError(f"--sidecar: {folder} is on a server of https, where none can be put")
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            raise UserError(f"cannot write {folder}, where --sidecar puts captions")
        return set()


def _read(path: str) -> list[str]:
    if not os.path.exists(path):
        return []
    if not os.path.isfile(path):  # a pipe would keep who reads it waiting
        raise UserError(f"{path} is no regular file: remove it, or name another --sidecar")
    return _lines(Path(path).read_bytes())


def _lines(content: bytes) -> list[str]:
    text = content.decode("utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
