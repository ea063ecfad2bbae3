"""Keeps a run's folder on this disk, the working copy, and the run in an object store in step.

`StoredRun.upload` changes the store in an order that keeps the run resumable if it is killed at any
time:

1. Remove outdated files other than checkpoints, such as scores of earlier weights.
2. Upload logs and captions, then scores.
3. Upload checkpoints: the data, then the file that marks the checkpoint as complete.
4. Upload the best checkpoint, then the record of its epoch.
5. Remove old checkpoints.
"""

import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Optional

from BLIP.weights.sharded_checkpoint import NON_TENSORS
from captioning.files import stores
from captioning.files.cache import fetch
from captioning.files.reading import read_json
from captioning.files.writing import SUFFIX, user_errors, write_json
from captioning.models.checkpoints import BEST, is_checkpoint_file
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# Has the random token of a working copy; in the store, of the working copy that uploaded last.
WRITER = "writer.json"
SELECTED = "selected.json"  # written by `captioning.training.selection`


class FileState(NamedTuple):
    """Identifies the content of a file of the working copy. Hard links have equal states."""

    size: int
    time_ns: int
    inode: int


def free_path(folder: Path) -> Path:
    """Return the first of FOLDER.1, FOLDER.2, ... that does not exist."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return target


class StoredRun:
    """A run in a store and its working copy. Only rank 0 calls the methods, except `token`.

    address: the run's folder in the store. folder: the working copy. NAME.stored.json beside the
    working copy records the state of each uploaded file.
    """

    def __init__(self, address: str, folder: Path):
        self.address, self.folder = address, folder
        self._record = folder.with_name(f"{folder.name}.stored.json")
        self._uploaded: dict[str, FileState] = {}
        self._last_writer = None  # content of WRITER in the store

    def begin(self) -> None:
        """Download the run, unless the working copy wrote to the store last. Raises UserError.

        A working copy that wrote last may have newer files than the store.
        """
        stored = stores.stamps(self.address)
        self._last_writer = self._writer() if WRITER in stored else None
        token, recorded = self.token(), self._read_record()
        # If the store is empty and there is no record, no upload of this folder has succeeded yet.
        wrote_last = token and (self._last_writer == token if stored else not recorded)
        with user_errors(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            if not wrote_last:
                self._move_new_files_aside(stored, recorded)
                self._download(stored)
            self.folder.mkdir(exist_ok=True)
            self._uploaded = {n: s for n, s in self._read_record().items() if n in stored}
        log_line(f"{self.address} has its working copy in {self.folder}")
        # Upload files whose upload failed before, because other machines may need them.
        if distributed.env_world_size() > 1:
            self.upload()

    def upload(self) -> None:
        """Upload new and changed files, and remove files that the working copy no longer has.

        Raises UserError, also if another machine has continued the run.
        """
        try:
            with user_errors(self.folder):
                if self.token() is None:
                    _write_token(self.folder)
                token, local = self.token(), self._files()
                if local == self._uploaded:
                    return
                has_other_writer = self._writer() not in (None, self._last_writer, token)
                if not has_other_writer:
                    self._upload_changes(local)
                    self._last_writer = token
        except UserError as error:
            raise UserError(
                f"{error}; nothing is lost: the run's files are in {self.folder}; run the same "
                "command again on this machine to continue"
            ) from error
        if has_other_writer:
            raise UserError(
                f"{self.address}: another machine has continued this run; the files that this "
                f"machine has written since then are in {self.folder}"
            )

    def move_aside(self) -> Optional[str]:
        """Move the run in the store to the first free ADDRESS.NUMBER.

        Returns the new address, or None if there is nothing to move.
        """
        if "/" not in self.address.partition("://")[2]:
            raise UserError(
                f"output_dir is {self.address}, a whole bucket: set it to a folder in the bucket"
            )
        stored, number = stores.stamps(self.address), 1
        while stores.stamps(target := f"{self.address}.{number}"):
            number += 1
        for name, stamp in stored.items():
            stores.copy(f"{self.address}/{name}", f"{target}/{name}", stamp[0])
        for name in _markers_first(stored):
            stores.remove(f"{self.address}/{name}")
        self._uploaded = {}
        return target if stored else None

    def token(self) -> Optional[bytes]:
        """Return the content of WRITER in this working copy; None if there is none yet."""
        path = self.folder / WRITER
        return path.read_bytes() if path.exists() else None

    def _move_new_files_aside(self, stored: dict[str, Any], recorded: dict[str, FileState]) -> None:
        """Move the working copy aside if it has files that were never uploaded.

        If the store has no WRITER, any working copy is moved aside. stored: the store's stamps by
        name. recorded: the states of uploaded files by name.
        """
        local = self._files()
        new = {name for name, state in local.items() if recorded.get(name) != state}
        if local and (WRITER not in stored or new - {WRITER}):
            target = free_path(self.folder)
            self.folder.rename(target)
            log_line(
                f"{self.address} has changed since {self.folder} was its working copy; moved the "
                f"working copy to {target}"
            )

    def _download(self, stored: dict[str, Any]) -> None:
        """Replace the working copy by the store's files. stored: the store's stamps by name."""
        incomplete = self.folder.with_name(f".{self.folder.name}{SUFFIX}")
        for earlier in (self.folder, incomplete):
            shutil.rmtree(earlier, ignore_errors=True)
        self._record.unlink(missing_ok=True)
        incomplete.mkdir()
        for name, stamp in stored.items():
            folder = name.rpartition("/")[0]
            complete = not folder.endswith(".pth") or f"{folder}/{NON_TENSORS}" in stored
            if complete and name != WRITER:
                fetch(f"{self.address}/{name}", incomplete / name, stamp)
        _write_token(incomplete)
        incomplete.rename(self.folder)
        self._uploaded = {name: s for name, s in self._files().items() if name != WRITER}
        self._write_record()

    def _upload_changes(self, local: dict[str, FileState]) -> None:
        changed = {name for name, state in local.items() if self._uploaded.get(name) != state}
        deleted = self._uploaded.keys() - local.keys()
        # A checkpoint file may have become a folder of the same name, or the reverse. The old files
        # then have to be removed before the new files are uploaded.
        changed_tops = {_top(name) for name in changed}
        outdated = {
            name
            for name in deleted
            if _top(name) in changed_tops or not is_checkpoint_file(_top(name))
        }
        # Remove the marker of a sharded checkpoint before its shards are replaced.
        replaced_markers = {
            n for n in changed & self._uploaded.keys() if n.endswith(f".pth/{NON_TENSORS}")
        }
        for name in _markers_first(outdated | replaced_markers):
            self._remove(name)
        for name in sorted(changed, key=_upload_order):
            self._write(name, local[name])
        for name in _markers_first(deleted - outdated):
            self._remove(name)

    def _write(self, name: str, state: FileState) -> None:
        # A hard link to an uploaded file, such as the best checkpoint, is copied within the store.
        duplicates = (n for n, s in self._uploaded.items() if s == state and n != name)
        source, target = next(duplicates, None), f"{self.address}/{name}"
        if source is None:
            stores.upload(self.folder / name, target)
        else:
            stores.copy(f"{self.address}/{source}", target, state.size)
        self._uploaded[name] = state
        self._write_record()

    def _remove(self, name: str) -> None:
        stores.remove(f"{self.address}/{name}")
        del self._uploaded[name]
        self._write_record()

    def _files(self) -> dict[str, FileState]:
        """Return the states of the files in the working copy, by name."""
        files = {}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            if path.is_file() and not any(part.endswith(SUFFIX) for part in name.parts):
                stat = path.stat()
                files[name.as_posix()] = FileState(stat.st_size, stat.st_mtime_ns, stat.st_ino)
        return files

    def _writer(self) -> Optional[bytes]:
        """Return the content of WRITER in the store; None if there is none."""
        try:
            return stores.read_bytes(f"{self.address}/{WRITER}")
        except stores.Missing:
            return None

    def _write_record(self) -> None:
        write_json({"uploaded": self._uploaded}, self._record)

    def _read_record(self) -> dict[str, FileState]:
        try:
            uploaded = read_json(self._record)["uploaded"]
            return {name: FileState(*state) for name, state in uploaded.items()}
        except (UserError, KeyError, TypeError, AttributeError):
            return {}  # without a record, every file is uploaded again


def _write_token(folder: Path) -> None:
    write_json({"token": secrets.token_hex(8)}, folder / WRITER)


def _top(name: str) -> str:
    """Return the first part of a name: the file, or the folder, directly in the run's folder."""
    return name.partition("/")[0]


def _is_marker(name: str) -> bool:
    """Return whether a file marks a checkpoint as complete.

    That is the checkpoint itself or, if the checkpoint is a folder, NON_TENSORS in the folder.
    """
    top, _, name_in_folder = name.partition("/")
    return is_checkpoint_file(top) and top.endswith(".pth") and name_in_folder in ("", NON_TENSORS)


def _markers_first(names: Iterable[str]) -> list[str]:
    """Sort names for removal: markers first, so that no incomplete checkpoint keeps its marker."""
    return sorted(names, key=lambda name: (not _is_marker(name), name))


def _upload_order(name: str) -> tuple:
    """Return a sort key for the order of upload in the module's docstring."""
    return _upload_stage(name), _top(name), _is_marker(name), name


def _upload_stage(name: str) -> int:
    top = _top(name)
    if name == WRITER:
        return 0
    if name == SELECTED:
        return 7
    if not is_checkpoint_file(top):
        return 2 if name.endswith("/metrics.json") else 1
    if top.startswith("weights_"):
        return 4
    return 6 if top == BEST else 5
