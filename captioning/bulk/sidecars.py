"""Reads and writes sidecars: text or XMP files next to photos, on disk or in a store.

A text sidecar has one caption per line.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from captioning.bulk import xmp
from captioning.bulk.plan import captions_of
from captioning.bulk.request import Request
from captioning.files import stores
from captioning.files.writing import replace_text, user_errors
from captioning.runtime.errors import UserError


class Sidecars:
    """The sidecars of one run. A sidecar has the name of its photo with the suffix --sidecar.

    With .xmp, sidecars are XMP files, in which the content of other programs is kept.
    """

    def __init__(self, request: Request):
        self.request, self.is_xmp = request, request.sidecar.lower() == xmp.EXTENSION
        protected = (*request.sources, *request.outputs, request.marker)
        self.protected = set(map(os.path.abspath, protected))
        self.images: dict[str, str] = {}  # {sidecar: image}
        self._names = lru_cache(64)(_names_in)

    def path_of(self, image: str) -> str:
        return os.path.splitext(image)[0] + self.request.sidecar

    def check(self, image: str) -> bool:
        """Return whether an image has a sidecar with a caption, see `has_caption`.

        Raises UserError if the sidecar would replace an input, an output or the sidecar of another
        image, or if its folder is not writable.
        """
        sidecar = self.path_of(image)
        if os.path.abspath(sidecar) in self.protected:
            raise UserError(
                f"{image}: its sidecar {sidecar} would replace an input or output file: choose "
                f"another --sidecar than {self.request.sidecar}"
            )
        owner = self.images.setdefault(sidecar, image)
        if owner != image:
            raise UserError(
                f"{owner} and {image} would both have the sidecar {sidecar}: rename one"
            )
        return self.has_caption(sidecar)

    def has_caption(self, sidecar: str) -> bool:
        """Return whether there is a sidecar, with a caption if it is XMP or on disk."""
        if os.path.basename(sidecar) not in self._names(os.path.dirname(sidecar) or "."):
            return False
        if self.is_xmp:
            return xmp.has_description(stores.read_bytes(sidecar), sidecar)
        return stores.is_store(sidecar) or bool(stores.read_bytes(sidecar).strip())

    def write(self, lines: Iterable[dict[str, Any]]) -> None:
        """Write the sidecars of lines, each atomically; see `_write`. Raises UserError."""
        self._names.cache_clear()
        with ThreadPoolExecutor(stores.THREADS) as pool:
            lines = iter(lines)
            while some := list(islice(lines, 1000)):  # `map` holds what it is given in memory
                list(pool.map(self._write, some))

    def _write(self, line: dict[str, Any]) -> None:
        """Write the sidecar of a line, unless it has a caption that is to stay.

        fsync is not called for sidecars on disk: it would take longer than captioning on a GPU.
        """
        image, captions = line["image"], captions_of(line)
        sidecar, folder = self.path_of(image), os.path.dirname(image) or "."
        if os.path.basename(image) not in self._names(folder):
            return  # the photo was moved
        if self.request.skips_existing and self.has_caption(sidecar):
            return
        text = "".join(f"{caption}\n" for caption in captions)
        if self.is_xmp:
            text = xmp.with_description(captions[0], stores.read_if_any(sidecar), sidecar)
        if stores.is_store(sidecar):
            stores.put(text.encode(), sidecar)
        else:
            with user_errors(sidecar):
                replace_text(text, Path(sidecar))


def _names_in(folder: str) -> frozenset[str]:
    """Return the names of the files in a folder. Raises UserError if it is not writable."""
    if stores.is_store(folder) and not stores.is_bucket_address(folder):
        raise UserError(f"--sidecar: {folder} is read-only: use --out alone")
    if os.path.isdir(folder) and not os.access(folder, os.W_OK):
        raise UserError(f"--sidecar: cannot write to {folder}")
    return frozenset(stores.names_in(folder))
