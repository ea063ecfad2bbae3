"""Describes one call of bulk captioning: its input, its output files and its lock."""

import argparse
import contextlib
import importlib.util
import os
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from captioning.bulk.filtering import SplitLine, split_by_score, threshold_of
from captioning.files import stores
from captioning.files.writing import SUFFIX
from captioning.runtime.errors import UserError

METADATA = "metadata.jsonl"


class Request(argparse.Namespace):
    """One call of bulk captioning: the arguments of `captioning.caption`; `sources` is INPUT.

    Files beside `out`:

    - failed: a line per image that failed
    - filtered: a line per image with captions that the filter dropped
    - marker: written last; {"settings", "tars": {tar: stamp}} of the last run
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

    def split(self, line: dict[str, Any]) -> SplitLine:
        """Split a line into a line for `out`, `kept`, and one for `filtered`, `dropped`.

        Both are None for a line with an error.
        """
        if "error" in line:
            return SplitLine(None)
        return split_by_score(line, threshold_of(self.filter)) if self.filter else SplitLine(line)

    def check(self) -> None:
        """Raise UserError if an output cannot be written. Called before the work starts."""
        files = {"--parquet": self.parquet, "--metadata": self.metadata, "--out": self.out}
        files = {flag: name for flag, name in files.items() if name}
        names = filter(None, (*self.sources, self.captions, *files.values()))
        keys = list(map(stores.key_of, names))
        for flag, name in files.items():
            stores.check_can_hold(flag, name)
            if os.path.isdir(name) or keys.count(stores.key_of(name)) > 1:
                raise UserError(f"{flag} is {name}; name another file")
        stores.check_can_hold("--write-shards", self.write_shards or "")
        if not self.out.endswith(".jsonl"):
            raise UserError(f"--out is {self.out}; it has to be a file that ends in .jsonl")
        if self.metadata and os.path.basename(self.metadata) != METADATA:
            raise UserError(f"--metadata is {self.metadata}; its name has to be {METADATA}")
        if self.parquet and importlib.util.find_spec("pyarrow") is None:
            raise UserError("--parquet needs the pyarrow library: pip install pyarrow")
        folders = {os.path.dirname(name) or "." for name in files.values()}
        for folder in {*folders, self.write_shards} - {None}:
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
            names = [*self.outputs, self.marker, self.parquet, self.metadata]
            names.append(self.write_shards and f"{self.write_shards}/*.tar")
            for path in map(Path, filter(None, names)):  # of a store none is found
                pattern = path.name if path.name == "*.tar" else escape(path.name)
                for name in (pattern, ".writable"):
                    for left in path.parent.glob(f".{name}.*{SUFFIX}"):
                        left.unlink(missing_ok=True)
            yield
        finally:
            os.remove(lock.lock_file)
            lock.release()
