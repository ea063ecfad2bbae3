"""Manages a run's output folder: on this disk, or in an object store with a local working copy.

`upload` changes the store in an order that keeps the run resumable if it is killed at any time:

1. Remove outdated files other than checkpoints, such as scores of earlier weights.
2. Upload logs and captions, then scores.
3. Upload checkpoints: the manifest, the data, then the file that marks the checkpoint as complete.
4. Upload the best checkpoint, then the record of its epoch.
5. Remove old checkpoints.
"""

import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from BLIP.weights.sharded_checkpoint import REST
from captioning.files import stores, uploads
from captioning.files.cache import cache_folder, cache_key, fetch
from captioning.files.reading import read_json
from captioning.files.writing import SUFFIX, user_errors, write_json
from captioning.models.checkpoints import BEST, is_checkpoint_file, local_copy
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# Has the random token of a working copy; in the store, of the working copy that uploaded last.
WRITER = "writer.json"
SELECTED = "selected.json"  # written by `captioning.training.selection`


def working_folder(output_dir: str) -> Path:
    """Return the run's folder on this disk. A run in a store has its working copy in the cache."""
    if not stores.is_store(output_dir):
        return Path(output_dir)
    address = output_dir.rstrip("/")
    return cache_folder() / "runs" / f"{PurePosixPath(address).name}-{cache_key(address, 8)}"


def free_path(folder: Path) -> Path:
    """Return the first of FOLDER.1, FOLDER.2, ... that does not exist."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return target


class OutputFolder:
    """The output folder of a run, on disk or in a store. On disk, `begin` and `upload` do nothing.

    folder: the folder on this disk. address: the folder's address in the store; None on disk. For
    a store, NAME.stored.json beside the folder records the size, time and inode of each uploaded
    file.
    """

    def __init__(self, output_dir: str):
        self.folder = working_folder(output_dir)
        self.address = output_dir.rstrip("/") if stores.is_store(output_dir) else None
        self._record = self.folder.with_name(f"{self.folder.name}.stored.json")
        self._uploaded: dict[str, list[int]] = {}
        self._last_writer: Optional[bytes] = None
        self._on_main_machine = True

    def begin(self) -> None:
        """Download the run from the store. All ranks call this.

        If rank 0 fails, raises UserError on all ranks.

        If this working copy wrote to the store last, nothing is downloaded, because the working
        copy may have newer files than the store.
        """
        if self.address:
            distributed.run_on_main(self._begin)
            # Tokens are compared, not host names, because two machines may have the same name.
            token = self._token()
            self._on_main_machine = distributed.broadcast_from_main(token) == token

    def upload(self) -> None:
        """Upload new and changed files. All ranks call this.

        If rank 0 fails, raises UserError on all ranks.
        """
        if self.address:
            distributed.run_on_main(self._upload_changes)

    def store_name(self, name: str) -> str:
        """Return the store address of a file in the folder. Other names are returned unchanged."""
        if not self.address or self.folder not in Path(name).parents:
            return name
        return f"{self.address}/{Path(name).relative_to(self.folder).as_posix()}"

    def local_path(self, name: str) -> str:
        """Return the local path of a checkpoint, given what `store_name` returned for it.

        The path is in the working copy on the machine of rank 0. Other machines download the
        checkpoint to the cache.
        """
        if not self.address or not name.startswith(f"{self.address}/"):
            return name
        path = self.folder / name[len(self.address) + 1 :]
        return str(path if self._on_main_machine and path.exists() else local_copy(name))

    def move_aside(self) -> Optional[str]:
        """Move the run in the store to the first free ADDRESS.NUMBER. Only called on rank 0.

        Returns the new address, or None if there is nothing to move.
        """
        if not self.address:
            return None
        if "/" not in self.address.partition("://")[2]:
            raise UserError(
                f"output_dir is {self.address}, a whole bucket: set it to a folder in the bucket"
            )
        stored, number = stores.stamps(self.address), 1
        while stores.stamps(target := f"{self.address}.{number}"):
            number += 1
        for name, stamp in stored.items():
            uploads.copy(f"{self.address}/{name}", f"{target}/{name}", stamp[0])
        for name in _markers_first(stored):
            uploads.remove(f"{self.address}/{name}")
        self._uploaded = {}
        return target if stored else None

    # The methods below are called on rank 0 only.

    def _begin(self) -> None:
        stored = stores.stamps(self.address)
        self._last_writer = self._writer() if WRITER in stored else None
        token, recorded = self._token(), self._read_record()
        # If the store is empty and there is no record, no upload of this folder has succeeded yet.
        wrote_last = token and (self._last_writer == token if stored else not recorded)
        with user_errors(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            if not wrote_last:
                self._download(stored, recorded)
            self.folder.mkdir(exist_ok=True)
            self._uploaded = {n: s for n, s in self._read_record().items() if n in stored}
        log_line(f"{self.address} has its working copy in {self.folder}")
        # Upload files whose upload failed before, because other machines may need them.
        if distributed.env_world_size() > 1:
            self._upload_changes()

    def _download(self, stored: dict[str, Any], recorded: dict[str, list[int]]) -> None:
        """Replace the local folder by the store's files.

        A local folder with files that were never uploaded is moved aside first, and so is any local
        folder if the store has no WRITER. stored: the store's
        stamps by name. recorded: {name: [size, time, inode]} of uploaded files.
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
        incomplete = self.folder.with_name(f".{self.folder.name}{SUFFIX}")
        for earlier in (self.folder, incomplete):
            shutil.rmtree(earlier, ignore_errors=True)
        self._record.unlink(missing_ok=True)
        incomplete.mkdir()
        for name, stamp in stored.items():
            folder = name.rpartition("/")[0]
            complete = not folder.endswith(".pth") or f"{folder}/{REST}" in stored
            if complete and name != WRITER:
                fetch(f"{self.address}/{name}", incomplete / name, stamp)
        _write_token(incomplete)
        incomplete.rename(self.folder)
        self._uploaded = {name: s for name, s in self._files().items() if name != WRITER}
        self._write_record()

    def _upload_changes(self) -> None:
        try:
            with user_errors(self.folder):
                if self._token() is None:
                    _write_token(self.folder)
                token, local = self._token(), self._files()
                if local == self._uploaded:
                    return
                has_other_writer = self._writer() not in (None, self._last_writer, token)
                if not has_other_writer:
                    self._upload(local)
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

    def _upload(self, local: dict[str, list[int]]) -> None:
        changed = {name for name, state in local.items() if self._uploaded.get(name) != state}
        deleted = self._uploaded.keys() - local.keys()
        # A checkpoint file may have become a folder of the same name, or the reverse. The old files
        # then have to be removed before the new files are uploaded.
        changed_tops = {name.partition("/")[0] for name in changed}
        outdated = {
            name
            for name in deleted
            if name.partition("/")[0] in changed_tops
            or not is_checkpoint_file(name.partition("/")[0])
        }
        # Remove the marker of a sharded checkpoint before its shards are replaced.
        rewritten = {n for n in changed & self._uploaded.keys() if n.endswith(f".pth/{REST}")}
        for name in _markers_first(outdated | rewritten):
            self._remove(name)
        for name in sorted(changed, key=_upload_order):
            self._write(name, local[name])
        for name in _markers_first(deleted - outdated):
            self._remove(name)

    def _write(self, name: str, state: list[int]) -> None:
        # Hard links have equal states. A hard link to an uploaded file, such as the best
        # checkpoint, is copied within the store.
        duplicates = (n for n, s in self._uploaded.items() if s == state and n != name)
        source, target = next(duplicates, None), f"{self.address}/{name}"
        if source is None:
            uploads.upload(self.folder / name, target)
        else:
            uploads.copy(f"{self.address}/{source}", target, state[0])
        self._uploaded[name] = state
        self._write_record()

    def _remove(self, name: str) -> None:
        uploads.remove(f"{self.address}/{name}")
        del self._uploaded[name]
        self._write_record()

    def _files(self) -> dict[str, list[int]]:
        """Return {name: [size, time, inode]} of the files in the folder."""
        files = {}
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            if path.is_file() and not any(part.endswith(SUFFIX) for part in name.parts):
                stat = path.stat()
                files[name.as_posix()] = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        return files

    def _token(self) -> Optional[bytes]:
        """Return the content of WRITER in this working copy; None if there is none yet."""
        path = self.folder / WRITER
        return path.read_bytes() if path.exists() else None

    def _writer(self) -> Optional[bytes]:
        """Return the content of WRITER in the store; None if there is none."""
        try:
            return stores.read_bytes(f"{self.address}/{WRITER}")
        except stores.Missing:
            return None

    def _write_record(self) -> None:
        write_json({"uploaded": self._uploaded}, self._record)

    def _read_record(self) -> dict[str, list[int]]:
        try:
            return dict(read_json(self._record)["uploaded"])
        except (UserError, KeyError, TypeError):  # without a record, every file is uploaded again
            return {}


def _write_token(folder: Path) -> None:
    write_json({"token": secrets.token_hex(8)}, folder / WRITER)


def _is_marker(name: str) -> bool:
    """Return whether a file marks a checkpoint as complete: *.pth, or REST in a folder *.pth."""
    top, _, within = name.partition("/")
    return is_checkpoint_file(top) and top.endswith(".pth") and within in ("", REST)


def _markers_first(names: Iterable[str]) -> list[str]:
    """Sort names for removal: markers first, so that no incomplete checkpoint keeps its marker."""
    return sorted(names, key=lambda name: (not _is_marker(name), name))


def _upload_order(name: str) -> tuple:
    """Return a sort key for the order of upload in the module's docstring."""
    top = name.partition("/")[0]
    checkpoint = is_checkpoint_file(top)
    # A file belongs to the first stage whose condition holds. Stages are uploaded in this order.
    stages = (
        name == WRITER,
        not checkpoint and name != SELECTED and not name.endswith("/metrics.json"),
        not checkpoint and name != SELECTED,
        checkpoint and top.endswith(".json"),
        top.startswith("weights_"),
        checkpoint and top != BEST,
        top == BEST,
        name == SELECTED,
    )
    return (stages.index(True), top, _is_marker(name), name)
