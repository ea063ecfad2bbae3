"""A run's output folder: on this disk, or in an object store with a working copy on this disk.

Finished files are copied to the store after each save, and fetched where the working copy is empty.
A run has one writer: the process whose id is in the file WRITER of the store.
"""

import secrets
import shutil
from pathlib import Path, PurePosixPath

from captioning.files import stores
from captioning.files.cache import cache_folder, cache_key, fetch
from captioning.files.reading import read_json
from captioning.files.writing import SUFFIX, write_json
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

WRITER = "writer.json"  # here {"id": of the writer, "copied": {file: stamp}}, in the store the id


def working_folder(output_dir: str) -> Path:
    """Return the run's folder on this disk. A run in a store has its working copy in the cache."""
    if not stores.is_store(output_dir):
        return Path(output_dir)
    address = output_dir.rstrip("/")
    return cache_folder() / "runs" / f"{PurePosixPath(address).name}-{cache_key(address, 8)}"


class OutputFolder:
    """The output folder of a run. On disk, `begin` and `upload` do nothing.

    folder: the folder on this disk. address: the folder's address in the store; None on disk.
    """

    def __init__(self, output_dir: str):
        self.folder = working_folder(output_dir)
        self.address = output_dir.rstrip("/") if stores.is_store(output_dir) else None
        self.id, self.copied = "", {}

    def begin(self) -> None:
        """Fetch the run if all files here are in the store, and become its writer.

        All ranks call this. Raises UserError on all ranks, also if another machine has continued
        the run.
        """
        if self.address:
            distributed.run_on_main(self._begin)

    def upload(self) -> None:
        """Copy new and changed files to the store, then remove those that are gone here.

        All ranks call this. Raises UserError on all ranks.
        """
        if self.address:
            distributed.run_on_main(self._upload)

    def _begin(self) -> None:
        record, writer = self.folder / WRITER, self._stored_id()
        if record.exists():
            self.id, self.copied = read_json(record).values()
        if not writer or writer != self.id:
            if not writer:  # a new run, or the store was emptied
                self.copied = {}
            elif record.exists() and _states(self.folder) != self.copied:
                raise UserError(
                    f"{self.address}: another machine has continued this run, and {self.folder} "
                    "has files that the store never had: move it away to fetch the run"
                )
            else:
                self._fetch()
            self.id = secrets.token_hex(8)
            self._write_record()
            stores.put(self.id.encode(), f"{self.address}/{WRITER}")
        log_line(f"{self.address} has its working copy in {self.folder}")

    def _fetch(self) -> None:
        (self.folder / WRITER).unlink(missing_ok=True)  # without it, the next call fetches again
        shutil.rmtree(self.folder, ignore_errors=True)
        for address in stores.list_files(self.address, recursive=True):
            name = address[len(self.address) + 1 :]
            if name != WRITER:
                fetch(address, self.folder / name)
        self.copied = _states(self.folder)

    def _write_record(self) -> None:
        write_json({"id": self.id, "copied": self.copied}, self.folder / WRITER)

    def _upload(self) -> None:
        current = _states(self.folder)
        if current == self.copied:
            return
        if self._stored_id() != self.id:
            raise UserError(
                f"{self.address}: another machine has continued this run; the files that this "
                f"machine has written since then are in {self.folder}"
            )
        changed = [name for name in current if current[name] != self.copied.get(name)]
        # In the order in which the files were completed or linked: if the upload stops, the store
        # has what a run has that was killed at that moment.
        for name in sorted(changed, key=lambda name: (self.folder / name).stat().st_ctime_ns):
            stores.upload(str(self.folder / name), f"{self.address}/{name}")
        for name in self.copied.keys() - current.keys():
            stores.remove(f"{self.address}/{name}")
        self.copied = current
        self._write_record()

    def _stored_id(self) -> str:
        return stores.read_if_any(f"{self.address}/{WRITER}").decode()


def _states(folder: Path) -> dict[str, stores.Stamp]:
    """Return {name: stamp} of the finished files in a working copy."""
    return {
        path.relative_to(folder).as_posix(): stores.stamp(str(path))
        for path in folder.rglob("*")
        if path.is_file() and path.name != WRITER and not path.name.endswith(SUFFIX)
    }
