"""The inputs and outputs that a call names: its images, its files, its locks."""

import contextlib
import importlib.util
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from filelock import FileLock, Timeout

from captioning.bulk import filtering
from captioning.bulk.shards import LOCK, Line, has_captions, remove_plan
from captioning.bulk.tar_folder import TarFolder
from captioning.files import stores, uploads
from captioning.files.images import LISTS, Listed, images_in, is_image, read_list
from captioning.files.tars import is_tars
from captioning.files.writing import SUFFIX, require_folder
from captioning.runtime.errors import UserError


@dataclass(frozen=True)
class Request:
    """One call.

    out: the captions, one line per image. failed: one line for each image without a caption.
    filtered: one line for each image with a caption that the filter drops.
    marker: written last. parts: the folder of the unfinished run. address: of `out` in a store, see
    `stored_output`; the files are then local copies.
    """

    source: str
    out: Path
    existing: str = "skip"
    captions: Optional[str] = None
    recursive: bool = True
    glob: Optional[str] = None
    root: Union[str, Path, None] = None
    column: Optional[str] = None
    sidecar: Optional[str] = None
    prefix: str = ""
    suffix: str = ""
    retry_failed: bool = False
    verify: bool = False
    shard_size: Optional[int] = None
    write_shards: Optional[str] = None
    parquet: Optional[str] = None
    filter: Optional[str] = None
    address: Optional[str] = None

    @property
    def failed(self) -> Path:
        return self.out.with_name("failed.jsonl")

    @property
    def filtered(self) -> Path:
        return self.out.with_name(f"{self.out.stem}.filtered.jsonl")

    @property
    def marker(self) -> Path:
        return self.out.with_name(self.out.name + ".done")

    @property
    def parts(self) -> Path:
        return self.out.with_name(self.out.name + ".parts")

    @property
    def skips_existing(self) -> bool:
        """Whether an image that has a caption keeps it."""
        return self.existing == "skip"

    @property
    def in_tars(self) -> bool:
        """Whether the images are in tars; a folder may be named like a tar."""
        return is_tars(self.source) and not os.path.isdir(self.source)

    def split(self, line: Line) -> tuple[Optional[Line], Optional[Line]]:
        """The lines for `out` and for `filtered` of a line of a shard; None for nothing."""
        if "error" in line:
            return None, None
        return filtering.parse(self.filter).split(line) if self.filter else (line, None)

    def kept(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The lines for `out`."""
        return filter(None, (self.split(line)[0] for line in lines))

    def location(self, path: Path) -> str:
        """The path or address at which the user finds `out` or a file beside it."""
        if self.address is None:
            return str(path)
        return stores.joined(self.address.rpartition("/")[0], path.name)

    def out_stamp(self) -> Optional[list[Any]]:
        """Changes when the captions file is rewritten; None where there is none."""
        return stamp_if_any(self.location(self.out))

    def tars(self) -> Optional[TarFolder]:
        """The folder of tars that this call writes, if any."""
        return self._tars_in(self.write_shards)

    def _tars_in(self, folder: Optional[str]) -> Optional[TarFolder]:
        owner = self.address or os.path.realpath(self.out)
        return TarFolder(folder, owner) if folder else None

    def claim_tars(self) -> None:
        """Raise UserError where the folder of tars is another run's."""
        if folder := self.tars():
            folder.claim()

    def remove_tars(self, header: dict[str, Any]) -> None:
        """Remove the tars of an abandoned plan, unless `out` has its captions already.

        Raises UserError, OSError.
        """
        folder = self._tars_in(header["settings"].get("write_shards"))
        if folder and self.out_stamp() == header["before"]:
            shards = -(-header["entries"] // header["shard_size"])
            folder.remove(range(header["first_shard"], header["first_shard"] + shards))

    def images(self) -> Iterator[Listed]:
        """Each image once, those of a folder in the order of their names. Raises UserError.

        Files are not opened here: whether one is an image shows when it is read.
        """
        source = Path(self.source)
        is_list = source.suffix in LISTS
        stored = stores.is_store(self.source)
        if stored:
            stores.check_address(self.source)
        elif not source.exists():
            raise UserError(f"{source}: no such photo, folder or list")
        is_folder = source.is_dir() or (stored and not is_list and not is_image(self.source))
        for name, given in {"--glob": self.glob, "--no-recursive": not self.recursive}.items():
            if given and not is_folder:
                raise UserError(f"{name} is for a folder, and {source} is not one")
        for name, given in {"--root": self.root, "--column": self.column}.items():
            if given and not is_list:
                raise UserError(f"{name} is for a list, and {source} is not one")
        if is_folder:
            return map(Listed, images_in(self.source, self.recursive, self.glob))
        if not is_list:
            return iter([Listed(self.source)])
        ids: dict[str, Any] = {}  # annotations name an image once for each of its captions
        root = str(self.root or os.path.dirname(self.source))
        if stores.is_store(root):
            stores.check_address(root)
        for item in read_list(self.source, self.column):
            ids.setdefault(stores.joined(root, item.image), item.image_id)
        return itertools.starmap(Listed, ids.items())

    def check_outputs(self) -> None:
        """Raise UserError before the work starts where an output cannot be written."""
        stores.check_can_hold("--write-shards", self.write_shards or "")
        stores.check_names_file("--parquet", self.parquet or "")
        if self.address and self.write_shards and not stores.is_store(self.write_shards):
            raise UserError("with an --out in a store, --write-shards is a folder in a store, too")
        for path in (self.out, self.failed, self.filtered, self.marker):
            if self.out.suffix != ".jsonl" or (path.exists() and not path.is_file()):
                raise UserError(
                    f"--out is {self.location(self.out)}; it has to be a file that ends in .jsonl, "
                    f"beside {self.failed.name} and {self.marker.name}"
                )
        require_folder(self.out.parent)
        if self.write_shards:
            require("webdataset", "--write-shards")
            uploads.require_writable(self.write_shards)
        if self.parquet:
            require("pyarrow", "--parquet")
            if os.path.isdir(self.parquet) or self.parquet in (self.source, str(self.out)):
                raise UserError(f"--parquet is {self.parquet}; name another file")
            uploads.require_writable(os.path.dirname(self.parquet) or ".")
        require_folder(self.parts)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other programs from writing `out`. Raises UserError where one is writing it."""
        lock = FileLock(str(self.parts / LOCK))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"{self.location(self.out)}: another program is writing it; wait for it"
            ) from None
        try:
            if self.address:  # no other run has files in the folder of the local copies
                for path in self.out.parent.rglob(f".*{SUFFIX}"):
                    path.unlink(missing_ok=True)
            yield
        finally:
            if not has_captions(self.parts):
                remove_plan(self.parts)
                (self.parts / LOCK).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    self.parts.rmdir()
            lock.release()

    @contextlib.contextmanager
    def lock_tars(self) -> Iterator[None]:
        """Own the folder of tars, if one is written. Raises UserError where another run owns it.

        The ownership ends with the block if nothing was captioned.
        """
        folder = self.tars()
        if folder is None:
            yield
            return
        folder.claim()
        try:
            folder.remove_partial()
            yield
        finally:
            folder.remove_partial()
            if not has_captions(self.parts):
                with contextlib.suppress(UserError):  # the error that ended the run is shown
                    folder.release()


def stamp_if_any(name: str) -> Optional[list[Any]]:
    """The stamp of a file, on disk or in a store; None where there is none. Raises StoreError."""
    try:
        return stores.stamp(name)
    except stores.StoreError:
        raise
    except UserError:
        return None


def require(library: str, reason: str) -> None:
    """Raise UserError where a library that `reason` needs is not installed."""
    if importlib.util.find_spec(library) is None:
        raise UserError(f"{reason} needs the {library} library: pip install {library}")
