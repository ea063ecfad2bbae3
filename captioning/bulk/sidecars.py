"""Reads and writes sidecars: text or XMP files next to photos, on disk or in a store.

A text sidecar has one caption per line.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from captioning.bulk import xmp
from captioning.bulk.shards import OutputLine, captions_of
from captioning.files import stores, uploads
from captioning.files.writing import replace_text
from captioning.runtime.errors import UserError

STORE_THREADS = 16  # how many files of a store are written or looked up at once


class Sidecars:
    """The sidecars of one run.

    extension: a sidecar has the name of its photo with this extension. With .xmp, sidecars are XMP
    files, in which the content of other programs is kept. protected: files that no sidecar may
    replace. language: the language tag of captions in XMP.
    """

    def __init__(self, extension: str, protected: Iterable[str] = (), language: str = xmp.DEFAULT):
        self.extension, self.language = extension, language
        self.is_xmp = extension.lower().endswith(xmp.EXTENSION)
        self.protected = {os.path.realpath(path) for path in protected}
        self._protected_names = set(map(os.path.basename, self.protected))
        self.images = {}  # {sidecar: image}
        self.stored = {}  # {folder: its sidecars}; empty sets for disk folders

    def path_of(self, image: str) -> str:
        return os.path.splitext(image)[0] + self.extension

    def exists(self, image: str) -> bool:
        """Return whether an image has a sidecar with a caption.

        An empty file on disk or XMP without a description does not count. A text file in a store
        always counts, because it is not read. Raises UserError if the sidecar would replace an
        input, an output or the sidecar of another image, or if its folder is not writable.
        """
        sidecar = self.path_of(image)
        # Compare names first, because calling realpath for every image would be slow.
        may_replace = os.path.basename(sidecar) in self._protected_names
        # If a photo has the extension of sidecars, its sidecar would replace the photo.
        if image.lower().endswith(self.extension.lower()) or (
            may_replace and os.path.realpath(sidecar) in self.protected
        ):
            raise UserError(
                f"{image}: its sidecar {sidecar} would replace an input or output file: choose "
                f"another --sidecar than {self.extension}"
            )
        other = self.images.setdefault(sidecar, image)
        if other != image:
            raise UserError(
                f"{other} and {image} would both have the sidecar {sidecar}: rename one"
            )
        folder = os.path.dirname(image) or "."
        if folder not in self.stored:
            self.stored[folder] = self._in_store(folder)
        in_store = stores.is_store(sidecar)
        if not (sidecar in self.stored[folder] if in_store else os.path.exists(sidecar)):
            return False
        if not (in_store or os.path.isfile(sidecar)):  # reading a pipe would block
            raise UserError(
                f"{sidecar} is not a regular file: remove it, or choose another --sidecar"
            )
        if self.is_xmp:
            return xmp.has_description(stores.read_bytes(sidecar), sidecar)
        return in_store or bool(Path(sidecar).read_bytes().strip())

    def _text(self, captions: list[str], sidecar: str) -> str:
        """Return the content to write to a sidecar. XMP only has the best caption, the first."""
        if not self.is_xmp:
            return "".join(f"{caption}\n" for caption in captions)
        before = stores.read_if_any(sidecar)
        return xmp.with_description(captions[0], self.language, before, sidecar)

    def write(self, lines: Iterable[OutputLine]) -> None:
        """Write the sidecars for all output lines, each atomically. Raises OSError, UserError.

        fsync is not called for sidecars on disk: it would take longer than captioning on a GPU.
        """
        pool = ThreadPoolExecutor(STORE_THREADS)
        try:
            pending = []
            for line in lines:
                sidecar = self.path_of(line["image"])
                text = self._text(captions_of(line), sidecar)
                if stores.is_store(sidecar):
                    pending.append(pool.submit(uploads.put, text.encode(), sidecar))
                else:
                    replace_text(text, Path(sidecar))
            for future in pending:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _in_store(self, folder: str) -> set[str]:
        """Return the sidecars in a folder of a store; empty for a folder on disk.

        Raises UserError if the folder is not writable.
        """
        if stores.is_bucket_address(folder):
            return {
                name for name in stores.list_files(folder, False) if name.endswith(self.extension)
            }
        if stores.is_store(folder):
            raise UserError(f"--sidecar: {folder} is read-only: use --out alone")
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            raise UserError(f"--sidecar: cannot write to {folder}")
        return set()
