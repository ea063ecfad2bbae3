"""What a call asks for, as far as images and files go, and the files that come of it."""

import contextlib
import importlib.util
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from filelock import FileLock, Timeout

from captioning.bulk.shards import LOCK, begun, remove_plan
from captioning.bulk.tar_folder import TarFolder
from captioning.files import stores, uploads
from captioning.files.images import LISTS, Listed, images_in, is_image, read_list
from captioning.files.tars import is_tars
from captioning.files.writing import SUFFIX, require_folder
from captioning.runtime.errors import UserError

EXISTING = ("skip", "overwrite", "append", "prepend")
# Settings of an unfinished run that say which images there are; plans of older versions lack them.
OF_THE_IMAGES = ("input", "glob", "root", "column", "recursive")


@dataclass(frozen=True)
class Request:
    """One call. The files: `out`, a line an image; `failed`, a line for each that has no caption;
    `marker`, written last; `parts`, a folder that is there until all is done. address: of `out` in
    a store, of which the files are copies then; see `stored_output`."""

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
    address: Optional[str] = None

    @property
    def failed(self) -> Path:
        return self.out.with_name("failed.jsonl")

    @property
    def marker(self) -> Path:
        return self.out.with_name(self.out.name + ".done")

    @property
    def parts(self) -> Path:
        return self.out.with_name(self.out.name + ".parts")

    @property
    def in_tars(self) -> bool:
        """Whether the images are in tars; a folder may have the name of one."""
        return is_tars(self.source) and not os.path.isdir(self.source)

    def told(self, path: Path) -> str:
        """What `out`, or a file beside it, is called where a user looks for it."""
        if self.address is None:
            return str(path)
        return stores.joined(self.address.rpartition("/")[0], path.name)

    def tars(self) -> Optional[TarFolder]:
        """The folder of tars that is written, if one is."""
        return self._tars_at(self.write_shards)

    def _tars_at(self, place: Optional[str]) -> Optional[TarFolder]:
        return TarFolder(place, self.address or os.path.realpath(self.out)) if place else None

    def claim_tars(self) -> None:
        """Raise UserError where the folder of tars is another run's."""
        if folder := self.tars():
            folder.claim()

    def stamp(self) -> Optional[list[Any]]:
        """What tells whether the captions' file is written anew; None where there is none."""
        return stamp_if_any(self.told(self.out))

    def drop_tars(self, plan: dict[str, Any]) -> None:
        """Remove the tars of a plan that is dropped, unless `out` has its captions by now.

        plan: its header. Raises UserError, OSError.
        """
        folder = self._tars_at(plan["settings"].get("write_shards"))
        if folder and self.stamp() == plan.get("before", "unknown"):
            shards = -(-plan["entries"] // plan["shard_size"])
            folder.drop(range(plan["first_shard"], plan["first_shard"] + shards))

    def files(self) -> list[str]:
        """What is read or written beside images: the list, the captions and what is beside them."""
        return [self.source, *map(self.told, (self.out, self.failed, self.marker))]

    def images(self) -> Iterator[Listed]:
        """Each image once, those of a folder in the order of their names. Raises UserError.

        Whether a file is an image is seen when it is read.
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
                raise UserError(f"{name} is for a folder, and {source} is none")
        for name, given in {"--root": self.root, "--column": self.column}.items():
            if given and not is_list:
                raise UserError(f"{name} is for a list, and {source} is none")
        if is_folder:
            return map(Listed, images_in(self.source, self.recursive, self.glob))
        if not is_list:
            return iter([Listed(self.source)])
        first: dict[str, Any] = {}  # annotations name an image once for each of its captions
        root = str(self.root or os.path.dirname(self.source))
        if stores.is_store(root):
            stores.check_address(root)
        for item in read_list(self.source, self.column):
            first.setdefault(stores.joined(root, item.image), item.image_id)
        return itertools.starmap(Listed, first.items())

    def keeps(self) -> bool:
        """Whether an image that has a caption is left alone."""
        return self.existing == "skip"

    def joined(self, old: list[str], new: list[str]) -> list[str]:
        """The captions that an image then has: the first with the first, and so on."""
        if self.keeps() or self.existing == "overwrite":
            return new
        first, second = (old, new) if self.existing == "append" else (new, old)
        pairs = itertools.zip_longest(first, second)
        return [" ".join(filter(None, pair)) for pair in pairs]

    def check_outputs(self) -> None:
        """Raise UserError where something cannot be written, before the work."""
        stores.check_can_hold("--write-shards", self.write_shards or "")
        stores.check_names_file("--parquet", self.parquet or "")
        if self.address and self.write_shards and not stores.is_store(self.write_shards):
            raise UserError("with an --out in a store, --write-shards is a folder in a store, too")
        for path in (self.out, self.failed, self.marker):
            if self.out.suffix != ".jsonl" or (path.exists() and not path.is_file()):
                raise UserError(
                    f"--out is {self.told(self.out)}; it has to be a file that ends in .jsonl, "
                    f"beside {self.failed.name} and {self.marker.name}"
                )
        require_folder(self.out.parent)
        if self.write_shards:
            require("webdataset", "--write-shards")
            uploads.require_writable(self.write_shards)
        if self.parquet:
            require("pyarrow", "--parquet")
            if os.path.isdir(self.parquet) or self.parquet in (self.source, str(self.out)):
                raise UserError(f"--parquet is {self.parquet}; it has to be a file of its own")
            uploads.require_writable(os.path.dirname(self.parquet) or ".")
        require_folder(self.parts)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other programs away from `out`; raises UserError where one is at work."""
        lock = FileLock(str(self.parts / LOCK))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"{self.told(self.out)}: another program is writing it; wait for it"
            ) from None
        try:
            if self.address:  # the folder of the copy is this one's alone
                for path in self.out.parent.rglob(f".*{SUFFIX}"):
                    path.unlink(missing_ok=True)
            yield
        finally:
            if not begun(self.parts):
                remove_plan(self.parts)
                (self.parts / LOCK).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    self.parts.rmdir()
            lock.release()

    @contextlib.contextmanager
    def owning_tars(self) -> Iterator[None]:
        """Keep other runs out of the folder of tars, from now on if one is written.

        Raises UserError where it is another's.
        """
        folder = self.tars()
        if folder is None:
            yield
            return
        folder.claim()
        try:
            folder.clear()
            yield
        finally:
            folder.clear()
            if not begun(self.parts):
                with contextlib.suppress(UserError):  # of a store: what ended the run counts
                    folder.release()


def stamp_if_any(name: str) -> Optional[list[Any]]:
    """The stamp of a file, on disk or in a store; None of one that is not there. StoreError."""
    try:
        return stores.stamp(name)
    except stores.StoreError:
        raise
    except UserError:
        return None


def require(library: str, why: str) -> None:
    """Raise UserError where a library that `why` needs is not installed."""
    if importlib.util.find_spec(library) is None:
        raise UserError(f"{why} needs the {library} library: pip install {library}")
