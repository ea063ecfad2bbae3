"""Text files beside photos, one caption per line, on disk or in a store."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from captioning.bulk.shards import Line, captions_of
from captioning.files import stores, uploads
from captioning.files.writing import replace_text
from captioning.runtime.errors import UserError

STORE_THREADS = 16  # files of a store that are written or looked up at a time


class Sidecars:
    """The sidecars of one run. extension: replaces that of the photo's name. kept: files that no
    sidecar may replace."""

    def __init__(self, extension: str, kept: Iterable[str] = ()):
        self.extension = extension
        self.kept = {os.path.realpath(path) for path in kept}
        self._kept_names = set(map(os.path.basename, self.kept))
        self.images: dict[str, str] = {}  # by sidecar
        self.stored: dict[str, set[str]] = {}  # sidecars in a store, by folder

    def path_of(self, image: str) -> str:
        return os.path.splitext(image)[0] + self.extension

    def exists(self, image: str) -> bool:
        """Whether an image has a sidecar; on disk an empty one does not count.

        Raises UserError where the sidecar would replace an input or output or another image's
        sidecar, and where its folder cannot be written.
        """
        sidecar = self.path_of(image)
        is_kept = os.path.basename(sidecar) in self._kept_names  # realpath takes long
        # With this extension the sidecar of some image would be an image.
        if image.lower().endswith(self.extension.lower()) or (
            is_kept and os.path.realpath(sidecar) in self.kept
        ):
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
        if folder not in self.stored:
            self.stored[folder] = self._in_store(folder)
        if stores.is_store(sidecar):
            return sidecar in self.stored[folder]
        if not os.path.exists(sidecar):
            return False
        if not os.path.isfile(sidecar):  # reading a pipe would block
            raise UserError(f"{sidecar} is no regular file: remove it, or name another --sidecar")
        return bool(Path(sidecar).read_bytes().strip())

    def write(self, lines: Iterable[Line]) -> None:
        """Write the sidecars of all lines, each atomically. Raises OSError, UserError.

        Those on disk are not synced: a sync would take longer than a GPU for the caption.
        """
        pool = ThreadPoolExecutor(STORE_THREADS)
        try:
            pending = []
            for line in lines:
                sidecar = self.path_of(line["image"])
                text = "".join(f"{caption}\n" for caption in captions_of(line))
                if stores.is_store(sidecar):
                    pending.append(pool.submit(uploads.put, text.encode(), sidecar))
                else:
                    replace_text(text, Path(sidecar))
            for future in pending:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _in_store(self, folder: str) -> set[str]:
        """The sidecars in a folder of a store. Raises UserError where none can be written."""
        if stores.has_folders(folder):
            return {name for name in stores.listed(folder, False) if name.endswith(self.extension)}
        if stores.is_store(folder):
            raise UserError(f"--sidecar: {folder} is on a server of https, which takes none")
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            raise UserError(f"cannot write {folder}, where --sidecar puts captions")
        return set()
