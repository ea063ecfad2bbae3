"""Describes one call of bulk captioning: its input images, its output files and its locks."""

import contextlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from filelock import FileLock, Timeout

from captioning.bulk import xmp
from captioning.bulk.filtering import SplitLine, split_by_score, threshold_of
from captioning.bulk.shards import LOCK, OutputLine, PlanHeader, has_captions, remove_plan
from captioning.bulk.sidecars import Sidecars
from captioning.bulk.tar_folder import TarFolder
from captioning.files import stores, tables, uploads
from captioning.files.image_lists import LISTS, ListedImage, has_columns, read_list
from captioning.files.images import images_in, is_image
from captioning.files.tars import is_tars
from captioning.files.writing import require_folder, unfinished_writes
from captioning.runtime.errors import UserError


@dataclass(frozen=True)
class Request:
    """One call of bulk captioning.

    The fields are flags of `captioning.caption`, except:

    - source: the input: a photo, folder, list, table or tars
    - address: the address of `out` in a store. If it is set, `out` and the paths below are local
      copies; see `stored_output`. None for files on disk

    The paths of the output files are derived from `out`:

    - out: the captions, one line per image
    - failed: one line per image that failed
    - filtered: one line per image with captions that the filter dropped
    - marker: written last, when the other files are complete
    - parts: the folder of the unfinished run
    """

    source: str
    out: Path
    existing: str = "skip"
    captions: Optional[str] = None
    recursive: bool = True
    glob: Optional[str] = None
    root: Optional[str] = None
    column: Optional[str] = None
    prompt: Optional[str] = None
    sidecar: Optional[str] = None
    language: Optional[str] = None
    license: str = "unknown"
    prefix: str = ""
    suffix: str = ""
    retry_failed: bool = False
    verify: bool = False
    shard_size: Optional[int] = None
    write_shards: Optional[str] = None
    parquet: Optional[str] = None
    metadata: Optional[str] = None
    kohya: Optional[str] = None
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
    def outputs(self) -> tuple[Path, ...]:
        """The output files, the marker last."""
        return self.failed, self.filtered, self.out, self.marker

    @property
    def skips_existing(self) -> bool:
        """Whether images that already have a caption are skipped (--existing skip)."""
        return self.existing == "skip"

    @property
    def in_tars(self) -> bool:
        """Whether the input is tar files. False for a folder whose name ends in .tar."""
        return is_tars(self.source) and not os.path.isdir(self.source)

    def split(self, line: OutputLine) -> SplitLine:
        """Split a line of a shard into a line for `out`, `kept`, and one for `filtered`, `dropped`.

        Both are None for a line with an error.
        """
        if "error" in line:
            return SplitLine(None)
        if self.filter is None:
            return SplitLine(line)
        return split_by_score(line, threshold_of(self.filter))

    def kept(self, lines: Iterable[OutputLine]) -> Iterator[OutputLine]:
        """Yield what `split` puts into `out` for each line of a shard."""
        return filter(None, (self.split(line).kept for line in lines))

    def location(self, path: Path) -> str:
        """Return the path or store address to show to the user. path: `out` or a file beside it."""
        if self.address is None:
            return str(path)
        return stores.join(self.address.rpartition("/")[0], path.name)

    def out_stamp(self) -> Optional[stores.Stamp]:
        """Return the stamp (see `stores.stamp`) of `out`; None if there is no file."""
        return stamp_if_any(self.location(self.out))

    def sidecars(self, protected: Iterable[str] = ()) -> Sidecars:
        """Return the writer of this call's sidecars. protected: files that no sidecar may replace.

        Only called if `sidecar` is set.
        """
        return Sidecars(self.sidecar, protected, self.language or xmp.DEFAULT)

    def tars(self) -> Optional[TarFolder]:
        """Return the folder to which this call writes tars; None without --write-shards."""
        owner = self.address or os.path.realpath(self.out)
        return TarFolder(self.write_shards, owner) if self.write_shards else None

    def remove_tars(self, header: PlanHeader) -> None:
        """Remove the tars of an abandoned plan, unless `out` has changed since the plan was made.

        If `out` has changed, the plan's captions are already merged into `out`. header: the plan's
        header, see `Plan`. Raises UserError, OSError.
        """
        folder = replace(self, write_shards=header["settings"].get("write_shards")).tars()
        if folder and self.out_stamp() == header["before"]:
            shards = -(-header["entries"] // header["shard_size"])
            folder.remove(range(header["first_shard"], header["first_shard"] + shards))

    def images(self) -> Iterator[ListedImage]:
        """Return an iterator over the input's images, each once. Not called for tars.

        Images of a folder are sorted by name. Image files are not opened here, so that a file that
        is not an image is only noticed when it is read. Raises UserError.
        """
        source = Path(self.source)
        is_table = tables.is_table(self.source)
        is_list = source.suffix in LISTS
        stored = stores.is_store(self.source)
        if stored:
            stores.check_address(self.source)
        elif not (is_table or source.exists()):
            raise UserError(f"{source}: no such photo, folder or list")
        is_folder = source.is_dir() or (stored and not is_list and not is_image(self.source))
        is_folder = is_folder and not is_table
        of_folder = {"--glob": self.glob, "--no-recursive": not self.recursive}
        of_list = {"--root": self.root, "--column": self.column}
        for kind, fits, flags in (("folder", is_folder, of_folder), ("list", is_list, of_list)):
            unfit = [name for name, is_set in flags.items() if is_set and not fits]
            if unfit:
                raise UserError(f"{unfit[0]} is for a {kind}, and {source} is not one")
        if has_columns(self.prompt) and not (is_list or is_table):
            raise UserError(f"--prompt names columns, and {source} has none: give a list")
        if is_folder:
            return map(ListedImage, images_in(self.source, self.recursive, self.glob))
        if is_table and self.sidecar:
            raise UserError(f"--sidecar: the photos of {source} have no folder: use --write-shards")
        if is_table:
            return read_list(self.source, None, self.prompt)
        if not is_list:
            return iter([ListedImage(self.source)])
        items = {}  # annotations may list an image once per caption
        root = str(self.root or os.path.dirname(self.source))
        if stores.is_store(root):
            stores.check_address(root)
        for item in read_list(self.source, self.column, self.prompt):
            image = stores.join(root, item.image)
            items.setdefault(image, ListedImage(image, item.image_id, prompt=item.prompt))
            if items[image].prompt != item.prompt:
                raise UserError(f"{source}: {item.image} has two prompts: give an image one")
            if items[image].image_id != item.image_id:
                raise UserError(f"{source}: {item.image} has two image ids: give an image one")
        return iter(items.values())

    def check_outputs(self) -> None:
        """Raise UserError if an output cannot be written. Called before the work starts."""
        stores.check_can_hold("--write-shards", self.write_shards or "")
        if self.address and self.write_shards and not stores.is_store(self.write_shards):
            raise UserError("--out is in a store, so --write-shards has to be in a store, too")
        for path in self.outputs:
            if self.out.suffix != ".jsonl" or (path.exists() and not path.is_file()):
                raise UserError(
                    f"--out is {self.location(self.out)}; it has to be a file that ends in .jsonl, "
                    f"next to {self.failed.name} and {self.marker.name}"
                )
        require_folder(self.out.parent)
        if self.write_shards:
            uploads.require_writable(self.write_shards)
        if self.parquet:
            require("pyarrow", "--parquet")
        tables_out = {"--parquet": self.parquet, "--metadata": self.metadata, "--kohya": self.kohya}
        for flag, name in tables_out.items():
            if name:
                stores.check_names_file(flag, name)
                if os.path.isdir(name) or name in (self.source, str(self.out)):
                    raise UserError(f"{flag} is {name}; name another file")
                uploads.require_writable(os.path.dirname(name) or ".")
        if (self.metadata or self.kohya) and (self.in_tars or tables.is_table(self.source)):
            raise UserError(
                f"--metadata and --kohya name image files, and {self.source} has them inside: use "
                "--parquet or --write-shards"
            )
        require_folder(self.parts)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock `out` within the block. Raises UserError if another program has locked it.

        At the end of the block, the plan is removed if nothing was captioned.
        """
        lock = FileLock(str(self.parts / LOCK))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"{self.location(self.out)}: another program is writing it; wait for it"
            ) from None
        try:
            if self.address:  # no other run writes here: remove temporary files of a killed run
                for path in unfinished_writes(self.out.parent):
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
    def lock_tars(self, folder: TarFolder) -> Iterator[None]:
        """Claim the output folder of tars. Raises UserError if another run owns the folder.

        At the end of the block, the folder is released if nothing was captioned.
        """
        folder.claim()
        try:
            folder.remove_partial()
            yield
        finally:
            folder.remove_partial()
            if not has_captions(self.parts):
                with contextlib.suppress(UserError):  # must not hide the error that ended the run
                    folder.release()


def stamp_if_any(name: str) -> Optional[stores.Stamp]:
    """Return the stamp (see `stores.stamp`) of a file on disk or in a store.

    Returns None if the file is missing or unreadable. Raises StoreError if the store does not
    answer or refuses access.
    """
    try:
        return stores.stamp(name)
    except stores.StoreError:
        raise
    except UserError:
        return None


def require(library: str, reason: str) -> None:
    """Raise UserError if a library is not installed. reason: the flag or input that needs it."""
    if importlib.util.find_spec(library) is None:
        raise UserError(f"{reason} needs the {library} library: pip install {library}")
