"""Describes one call of bulk captioning: its input, its output files and its lock."""

import argparse
import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from captioning.files import stores
from captioning.files.images import is_image
from captioning.files.writing import SUFFIX
from captioning.runtime.errors import UserError


class Request(argparse.Namespace):
    """One call of bulk captioning: the arguments of `captioning.caption`; `sources` is INPUT.

    Files beside `out`:

    - failed: a line per image that failed
    - filtered: a line per image with captions that the filter dropped
    - marker: written last; {"settings", "tars": {key: stamp}} of the last run
    - parts: the folder of an unfinished run, see `captioning.bulk.plan`
    """

    @property
    def failed(self) -> str:
        return self.out.removesuffix(".jsonl") + ".failed.jsonl"

    @property
    def filtered(self) -> str:
        return self.out.removesuffix(".jsonl") + ".filtered.jsonl"

    @property
    def marker(self) -> str:
        return f"{self.out}.done"

    @property
    def parts(self) -> str:
        return f"{self.out}.parts"

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.out, self.filtered, self.failed

    @property
    def written(self) -> list[str]:
        """The files that the flags name."""
        return [name for name in (self.out, self.parquet, self.metadata) if name]

    @property
    def folders(self) -> set[str]:
        """The folders of all outputs but sidecars."""
        folders = {os.path.dirname(name) or "." for name in self.written}
        return folders | ({self.write_shards} - {None})

    @property
    def skips_existing(self) -> bool:
        """Whether images that already have a caption are skipped (--existing skip)."""
        return self.existing == "skip"

    def with_affixes(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return a line with --prefix and --suffix around its captions."""
        affixed = dict(line)
        if "caption" in line:
            affixed["caption"] = f"{self.prefix}{line['caption']}{self.suffix}"
        if "captions" in line:
            affixed["captions"] = [f"{self.prefix}{text}{self.suffix}" for text in line["captions"]]
        return affixed

    def check(self) -> None:
        """Raise UserError if an output cannot be written. Called before the work starts."""
        if not self.out.endswith(".jsonl"):
            raise UserError(f"--out is {self.out}; it has to be a file that ends in .jsonl")
        # A sidecar with the suffix of an image would replace photos.
        if (end := self.sidecar) and (os.path.splitext(f"a{end}")[1] != end or is_image(f"a{end}")):
            raise UserError(f"--sidecar is {end!r}; it has to be a suffix of texts, such as .txt")
        read = {stores.key_of(name) for name in (*self.sources, self.captions) if name}
        for name in self.written:
            if stores.key_of(name) in read:
                raise UserError(f"{name} would be replaced; name another output than the input")
            read.add(stores.key_of(name))
        if self.parquet and importlib.util.find_spec("pyarrow") is None:
            raise UserError("--parquet needs the pyarrow library: pip install pyarrow")
        for folder in self.folders:
            stores.check_can_hold("an output", folder)
            stores.require_writable(folder)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock `out` within the block; a store has no locks. Raises UserError if it is locked.

        Also removes temporary files that killed programs have left beside the outputs.
        """
        if stores.is_store(self.out):
            yield
            return
        lock = FileLock(f"{self.out}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"{self.out}: another program is writing it; wait for it") from None
        try:
            names = (*self.outputs, *self.written, self.marker, ".writable")
            names = set(map(os.path.basename, names))
            for folder in map(Path, self.folders):  # of a store none is found
                for left in folder.glob(f".*{SUFFIX}"):
                    name = left.name[1:].rsplit(".", 3)[0]  # see `writing.atomic_write`
                    if name in names or name.endswith(".tar"):
                        left.unlink(missing_ok=True)
            yield
        finally:
            os.remove(lock.lock_file)
            lock.release()
