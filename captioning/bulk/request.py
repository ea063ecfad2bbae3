"""Describes one call of bulk captioning: its input, its output files and its lock."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from filelock import FileLock, Timeout

from captioning.bulk.filtering import SplitLine, split_by_score, threshold_of
from captioning.files import stores
from captioning.files.writing import SUFFIX
from captioning.runtime.errors import UserError

METADATA = "metadata.jsonl"


@dataclass(frozen=True)
class Request:
    """One call of bulk captioning.

    The fields are arguments of `captioning.caption`; `sources` is INPUT. Files beside `out`:

    - failed: a line per image that failed
    - filtered: a line per image with captions that the filter dropped
    - marker: written last; {"settings", "tars": {tar: stamp}} of the last run
    - parts: the folder of an unfinished run, see `captioning.bulk.plan`
    """

    sources: tuple[str, ...]
    out: str
    existing: str = "skip"
    captions: Optional[str] = None
    recursive: bool = True
    glob: Optional[str] = None
    root: Optional[str] = None
    column: Optional[str] = None
    prompt: Optional[str] = None
    sidecar: Optional[str] = None
    language: Optional[str] = None
    prefix: str = ""
    suffix: str = ""
    retry_failed: bool = False
    verify: bool = False
    shard_size: int = 256
    write_shards: Optional[str] = None
    parquet: Optional[str] = None
    metadata: Optional[str] = None
    filter: Optional[str] = None

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
        for flag, name in (("--parquet", self.parquet), ("--metadata", self.metadata)):
            stores.check_can_hold(flag, name or "")
            if name and (os.path.isdir(name) or name in (self.out, *self.sources)):
                raise UserError(f"{flag} is {name}; name another file")
        stores.check_can_hold("--out", self.out)
        stores.check_can_hold("--write-shards", self.write_shards or "")
        files = filter(os.path.exists, (*self.outputs, self.marker))
        if not (self.out.endswith(".jsonl") and all(map(os.path.isfile, files))):
            raise UserError(f"--out is {self.out}; it has to be a file that ends in .jsonl")
        if self.metadata and os.path.basename(self.metadata) != METADATA:
            raise UserError(f"--metadata is {self.metadata}; its name has to be {METADATA}")
        if self.parquet and importlib.util.find_spec("pyarrow") is None:
            raise UserError("--parquet needs the pyarrow library: pip install pyarrow")
        folders = {
            os.path.dirname(name) for name in (self.out, self.parquet, self.metadata) if name
        }
        for folder in {*folders, self.write_shards} - {None}:
            stores.require_writable(folder or ".")

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
            patterns = [f"{os.path.basename(name)}.*" for name in (".writable", *names) if name]
            places = {Path(name).parent for name in names if name and not stores.is_store(name)}
            if self.write_shards and not stores.is_store(self.write_shards):
                places.add(Path(self.write_shards))
                patterns.append("*.tar.*")
            for place in places:
                for pattern in patterns:
                    for path in place.glob(f".{pattern}{SUFFIX}"):
                        path.unlink(missing_ok=True)
            yield
        finally:
            os.remove(lock.lock_file)
            lock.release()
