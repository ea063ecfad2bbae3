"""A run's output: a folder on this disk, or one of an object store with a local working copy.

Files are uploaded in an order such that a kill at any time leaves a run that resumes: outdated
scores are removed first; logs, captions and scores come next; then of each checkpoint the manifest,
the data and the file that marks it as complete; then the best checkpoint and the record of its
epoch. Old checkpoints are removed last.
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
from captioning.models.checkpoints import BEST, fetched, is_checkpoint
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

WRITER = "writer.json"  # a token of the working copy that has written to the store last
SELECTED = "selected.json"  # of `captioning.training.selection`


def working_folder(output_dir: str) -> Path:
    """The run's folder on this disk, of a run in a store its working copy in the cache."""
    if not stores.is_store(output_dir):
        return Path(output_dir)
    address = output_dir.rstrip("/")
    return cache_folder() / "runs" / f"{PurePosixPath(address).name}-{cache_key(address, 8)}"


def free_name(folder: Path) -> Path:
    """The first of FOLDER.1, FOLDER.2, ... that does not exist."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return target


class OutputFolder:
    """folder: on this disk. `keep` uploads what is new in it, if the run is in a store.

    NAME.stored.json beside the folder records the size, time and inode of each uploaded file.
    """

    def __init__(self, output_dir: str):
        self.folder = working_folder(output_dir)
        self.address = output_dir.rstrip("/") if stores.is_store(output_dir) else None
        self._record = self.folder.with_name(f"{self.folder.name}.stored.json")
        self._uploaded: dict[str, list[int]] = {}
        self._last_writer: Optional[bytes] = None
        self._on_main_machine = True

    def begin(self) -> None:
        """Make the folder equal to the store's; all ranks call it. Raises UserError on all.

        The folder stays as it is if it was the last to write to the store: it may have more.
        """
        if self.address:
            distributed.main_alone(self._begin)
            token = self._token()  # machines may have the same name, or share a disk
            self._on_main_machine = distributed.broadcast_from_main(token) == token

    def keep(self) -> None:
        """Upload what is new in the folder; all ranks call it. Raises UserError on all."""
        if self.address:
            distributed.main_alone(self._keep)

    def name_of(self, name: str) -> str:
        """The address of a file in the folder; other names are returned unchanged."""
        if not self.address or self.folder not in Path(name).parents:
            return name
        return f"{self.address}/{Path(name).relative_to(self.folder).as_posix()}"

    def here(self, name: str) -> str:
        """The local path of a checkpoint of `name_of`; downloaded, if rank 0 is elsewhere."""
        if not self.address or not name.startswith(f"{self.address}/"):
            return name
        path = self.folder / name[len(self.address) + 1 :]
        return str(path if self._on_main_machine and path.exists() else fetched(name))

    def move_aside(self) -> Optional[str]:
        """Move the store's folder to a new address, and return it. For rank 0 alone."""
        if not self.address:
            return None
        if "/" not in self.address.partition("://")[2]:
            raise UserError(f"{self.address} is a whole bucket: name a folder in it, as output_dir")
        there, number = stores.stamps(self.address), 1
        while stores.stamps(target := f"{self.address}.{number}"):
            number += 1
        for name, stamp in there.items():
            uploads.copy(f"{self.address}/{name}", f"{target}/{name}", stamp[0])
        for name in _markers_first(there):
            uploads.remove(f"{self.address}/{name}")
        self._uploaded = {}
        return target if there else None

    # On rank 0

    def _begin(self) -> None:
        there = stores.stamps(self.address)
        self._last_writer = self._writer() if WRITER in there else None
        own, recorded = self._token(), self._read_record()
        # An empty store and no record: nothing of this folder could be uploaded so far.
        is_last = own and (self._last_writer == own if there else not recorded)
        with user_errors(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            if not is_last:
                self._download(there, recorded)
            self.folder.mkdir(exist_ok=True)
            self._uploaded = {n: of for n, of in self._read_record().items() if n in there}
        log_line(f"{self.address} is written through {self.folder}")
        if distributed.announced() > 1:  # other machines read what could not be uploaded before
            self._keep()

    def _download(self, there: dict[str, Any], recorded: dict[str, list[int]]) -> None:
        """Replace the folder. One with files that were never uploaded is moved aside."""
        here = self._files()
        new = {name for name, stamp in here.items() if recorded.get(name) != stamp}
        if here and (WRITER not in there or new - {WRITER}):
            target = free_name(self.folder)
            self.folder.rename(target)
            log_line(
                f"{self.address} is not as it was left; moved {self.folder}, a copy, to {target}"
            )
        begun = self.folder.with_name(f".{self.folder.name}{SUFFIX}")
        for earlier in (self.folder, begun):
            shutil.rmtree(earlier, ignore_errors=True)
        self._record.unlink(missing_ok=True)
        begun.mkdir()
        for name, stamp in there.items():
            folder = name.rpartition("/")[0]
            complete = not folder.endswith(".pth") or f"{folder}/{REST}" in there
            if complete and name != WRITER:
                fetch(f"{self.address}/{name}", begun / name, stamp)
        _write_token(begun)
        begun.rename(self.folder)
        self._uploaded = {name: of for name, of in self._files().items() if name != WRITER}
        self._write_record()

    def _keep(self) -> None:
        try:
            with user_errors(self.folder):
                if self._token() is None:
                    _write_token(self.folder)
                own, here = self._token(), self._files()
                if here == self._uploaded:
                    return
                overtaken = self._writer() not in (None, self._last_writer, own)
                if not overtaken:
                    self._upload(here)
                    self._last_writer = own
        except UserError as error:
            raise UserError(
                f"{error}; nothing is lost: what the run has written is in {self.folder}, and the "
                "same command goes on with it on this machine"
            ) from error
        if overtaken:
            raise UserError(
                f"{self.address}: another machine has gone on with this run; what this one has "
                f"written since is in {self.folder}"
            )

    def _upload(self, here: dict[str, list[int]]) -> None:
        changed = {name for name, stamp in here.items() if self._uploaded.get(name) != stamp}
        gone = self._uploaded.keys() - here.keys()
        # What changes between a file and a folder is removed before it is written.
        tops = {name.partition("/")[0] for name in changed}
        outdated = {
            name
            for name in gone
            if name.partition("/")[0] in tops or not is_checkpoint(name.partition("/")[0])
        }
        # A sharded checkpoint that is rewritten is not complete until its marker comes again.
        rewritten = {n for n in changed & self._uploaded.keys() if n.endswith(f".pth/{REST}")}
        for name in _markers_first(outdated | rewritten):
            self._remove(name)
        for name in sorted(changed, key=_upload_order):
            self._write(name, here[name])
        for name in _markers_first(gone - outdated):
            self._remove(name)

    def _write(self, name: str, stamp: list[int]) -> None:
        # The best checkpoint is a hard link to one that the store has.
        same = (n for n, of in self._uploaded.items() if of == stamp and n != name)
        source, target = next(same, None), f"{self.address}/{name}"
        if source is None:
            uploads.upload(self.folder / name, target)
        else:
            uploads.copy(f"{self.address}/{source}", target, stamp[0])
        self._uploaded[name] = stamp
        self._write_record()

    def _remove(self, name: str) -> None:
        uploads.remove(f"{self.address}/{name}")
        del self._uploaded[name]
        self._write_record()

    def _files(self) -> dict[str, list[int]]:
        """Size, time and inode of each file of the folder, by its name."""
        found = {}
        for path in self.folder.rglob("*"):
            within = path.relative_to(self.folder)
            if path.is_file() and not any(part.endswith(SUFFIX) for part in within.parts):
                known = path.stat()
                found[within.as_posix()] = [known.st_size, known.st_mtime_ns, known.st_ino]
        return found

    def _token(self) -> Optional[bytes]:
        own = self.folder / WRITER
        return own.read_bytes() if own.exists() else None

    def _writer(self) -> Optional[bytes]:
        """The token in the store."""
        try:
            return stores.whole(f"{self.address}/{WRITER}")
        except stores.Missing:
            return None

    def _write_record(self) -> None:
        write_json({"address": self.address, "uploaded": self._uploaded}, self._record)

    def _read_record(self) -> dict[str, list[int]]:
        try:
            record = read_json(self._record)
            if "files" in record:  # of an older version
                return {name: of["here"] for name, of in record["files"].items()}
            return dict(record["uploaded"])
        except (UserError, KeyError, TypeError):  # then every file is uploaded again
            return {}


def _write_token(folder: Path) -> None:
    write_json({"token": secrets.token_hex(8)}, folder / WRITER)


def _is_marker(name: str) -> bool:
    """Whether a file marks a checkpoint as complete: the checkpoint itself, or REST of a folder."""
    top, _, within = name.partition("/")
    return is_checkpoint(top) and top.endswith(".pth") and within in ("", REST)


def _markers_first(names: Iterable[str]) -> list[str]:
    """The order in which files are removed."""
    return sorted(names, key=lambda name: (not _is_marker(name), name))


def _upload_order(name: str) -> tuple:
    """The order in which files are written; see the top."""
    top = name.partition("/")[0]
    checkpoint = is_checkpoint(top)
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
