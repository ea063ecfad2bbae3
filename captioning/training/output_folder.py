"""A run's output folder: on this disk, or in an object store with a working copy on this disk.

Finished files are copied to the store after each save, and fetched where the working copy is empty.
A run has one writer: the process whose id is in the file WRITER of the store.
"""

import json
import secrets
import shutil
from pathlib import Path, PurePosixPath

from captioning.files import stores
from captioning.files.cache import cache_folder, cache_key, fetch
from captioning.files.writing import SUFFIX, user_errors, write_json
from captioning.models.checkpoints import BEST, is_checkpoint_file
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

WRITER = "writer.json"  # here {"id": of the writer, "copied": {file: state}}, in the store the id
LOG = "log.jsonl"  # see `captioning.training.log.RunLog`
SELECTED = "selected.json"  # see `captioning.training.selection.Selection`


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
        """Fetch the run if the working copy is empty, and become its writer. All ranks call this.

        Raises UserError on all ranks, also if another machine has continued the run.
        """
        if self.address:
            distributed.run_on_main(self._begin)

    def upload(self) -> None:
        """Copy new and changed files to the store, and remove those that are gone here.

        All ranks call this. Raises UserError on all ranks.
        """
        if self.address:
            distributed.run_on_main(self._upload)

    def _begin(self) -> None:
        writer = self._stored_writer()
        text = stores.read_if_any(str(self.folder / WRITER)).decode()
        # Earlier versions wrote the same content, without an id, here and to the store.
        record = {"id": text, "copied": {}, **json.loads(text or "{}")}
        self.id = record["id"]
        current = _states(self.folder)
        with user_errors(self.folder):
            if writer and writer == self.id:
                self.copied = record["copied"]
            elif current == record["copied"] and (writer or not current):
                self._fetch()  # all that is here has been in the store
            elif writer:
                raise UserError(
                    f"{self.address}: another machine has continued this run, and {self.folder} "
                    "has files that the store never had: move it away to fetch the run"
                )
            else:  # the store was emptied, or nothing was copied yet
                self._become_writer(self.folder)
        log_line(f"{self.address} has its working copy in {self.folder}")

    def _fetch(self) -> None:
        temporary = self.folder.with_name(f".{self.folder.name}{SUFFIX}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for address in stores.list_files(self.address, recursive=True):
            name = address[len(self.address) + 1 :]
            if name != WRITER:
                fetch(address, temporary / name)
        self.copied = _states(temporary)
        self._become_writer(temporary)
        shutil.rmtree(self.folder, ignore_errors=True)
        temporary.rename(self.folder)

    def _become_writer(self, folder: Path) -> None:
        self.id = secrets.token_hex(8)
        write_json({"id": self.id, "copied": self.copied}, folder / WRITER)
        stores.put(self.id.encode(), f"{self.address}/{WRITER}")

    def _upload(self) -> None:
        current = _states(self.folder)
        if current == self.copied:
            return
        if self._stored_writer() != self.id:
            raise UserError(
                f"{self.address}: another machine has continued this run; the files that this "
                f"machine has written since then are in {self.folder}"
            )
        try:
            names = current.keys() | self.copied.keys()
            for name in sorted(names, key=lambda name: (_stage(name, name in current), name)):
                target, state = f"{self.address}/{name}", current.get(name)
                if state is None:
                    stores.remove(target)
                    del self.copied[name]
                elif state != self.copied.get(name):
                    # Another name of the same file, as of the best checkpoint, is in the store.
                    same = (n for n, s in self.copied.items() if s == state)
                    if source := next(same, None):
                        stores.copy(f"{self.address}/{source}", target)
                    else:
                        stores.upload(str(self.folder / name), target)
                    self.copied[name] = state
        except UserError as error:
            raise UserError(
                f"{error}; nothing is lost: the run's files are in {self.folder}; run the same "
                "command again on this machine to continue"
            ) from error
        finally:
            with user_errors(self.folder):
                write_json({"id": self.id, "copied": self.copied}, self.folder / WRITER)

    def _stored_writer(self) -> str:
        return stores.read_if_any(f"{self.address}/{WRITER}").decode()


def _states(folder: Path) -> dict[str, list[int]]:
    """Return {name: [size, time of change, inode]} of the finished files in a working copy."""
    states = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and path.name != WRITER and not path.name.endswith(SUFFIX):
            stat = path.stat()
            states[name.as_posix()] = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    return states


def _stage(name: str, is_here: bool) -> int:
    """Return when an upload handles a file, so that the run in the store can always be resumed.

    Outdated files other than checkpoints are removed first. Then captions and scores, the log that
    says that they are there, checkpoints, the best checkpoint and the record of its epoch are
    copied. Old checkpoints are removed last.
    """
    is_checkpoint = is_checkpoint_file(name)
    if not is_here:
        return 9 if is_checkpoint else 0
    return {LOG: 2, BEST: 4, SELECTED: 5}.get(name, 3 if is_checkpoint else 1)
