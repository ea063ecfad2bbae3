"""Where a run goes: a folder on this disk, or one of an object store that is written through it.

In a store a file appears whole under its name, and nothing is renamed. What a kill leaves there is
what it leaves on a disk: scores that are no more go first; the log, captions and scores come next,
then of each checkpoint the manifest, the data and what it is known by, then the best one, and which
epoch that is. Last goes what the run has removed.
"""

import secrets
import shutil
from collections.abc import Iterable, Iterator
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
from captioning.runtime.progress import say

# Names in a store's folder whose working folder was the last to write there: its token.
WRITER = "writer.json"
SELECTED = "selected.json"  # of `captioning.training.selection`


def working_folder(output_dir: str) -> Path:
    """The folder on this disk: the run's own, or where it is in a store that of its copy."""
    if not stores.is_store(output_dir):
        return Path(output_dir)
    address = output_dir.rstrip("/")
    return cache_folder() / "runs" / f"{PurePosixPath(address).name}-{cache_key(address, 8)}"


def free_name(folder: Path) -> Path:
    """Beside the folder, where it can be moved: FOLDER.1, .2 and so on."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return target


class OutputFolder:
    """folder: on this disk. `keep` brings what is in it to the store, if it is of one.

    Beside the folder, in NAME.stored.json, is which version of each file the store has.
    """

    def __init__(self, output_dir: str):
        self.folder = working_folder(output_dir)
        self.address = output_dir.rstrip("/") if stores.is_store(output_dir) else None
        self._record = self.folder.with_name(f"{self.folder.name}.stored.json")
        self._stored: dict[str, dict[str, Any]] = {}  # by name: its stamps here and there
        self._last_writer: Optional[bytes] = None  # to the store, as far as is known
        self._beside_main = True  # this process, on rank 0's machine

    def begin(self) -> None:
        """Let the folder be what the store has, on rank 0; all ask. Raises UserError on all.

        A folder that the last to write there was has all of that, and what it could not write yet.
        """
        if self.address:
            distributed.main_alone(self._begin)
            token = self._token()  # machines may share a name, or a disk
            self._beside_main = distributed.broadcast_from_main(token) == token

    def keep(self) -> None:
        """Write to the store what is new in the folder; all ask. Raises UserError on all."""
        if self.address:
            distributed.main_alone(self._keep)

    def name_of(self, name: str) -> str:
        """What a file of the folder is called on every machine; the name of any other as it is."""
        if not self.address or self.folder not in Path(name).parents:
            return name
        return f"{self.address}/{Path(name).relative_to(self.folder).as_posix()}"

    def here(self, name: str) -> str:
        """Where a checkpoint of `name_of` is on this machine; not rank 0's, it has a copy."""
        if not self.address or not name.startswith(f"{self.address}/"):
            return name
        path = self.folder / name[len(self.address) + 1 :]
        return str(path if self._beside_main and path.exists() else fetched(name))

    def move_aside(self) -> Optional[str]:
        """Copy what the store's folder has to another, and remove it; its address. Rank 0 alone."""
        if not self.address:
            return None
        if "/" not in self.address.partition("://")[2]:
            raise UserError(f"{self.address} is a whole bucket: name a folder in it, as output_dir")
        there, number = stores.stamps(self.address), 1
        while stores.stamps(target := f"{self.address}.{number}"):
            number += 1
        for name, stamp in there.items():
            uploads.copy(f"{self.address}/{name}", f"{target}/{name}", stamp[0])
        for name in _leaving(there):
            uploads.remove(f"{self.address}/{name}")
        self._stored = {}
        return target if there else None

    # On rank 0

    def _begin(self) -> None:
        there = stores.stamps(self.address)
        self._last_writer = self._writer() if WRITER in there else None
        with user_errors(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            if not self._is_last_writer(there):
                self._replace(there)
            self.folder.mkdir(exist_ok=True)
            known = self._read_record()
            self._stored = {n: of for n, of in known.items() if of["there"] == there.get(n)}
        say(f"{self.address} is written through {self.folder}")
        if distributed.announced() > 1:  # others may read what could not be written before
            self._keep()

    def _is_last_writer(self, there: dict[str, Any]) -> bool:
        own = self._token()
        if own is None:
            return False
        if not there:  # emptied since, unless nothing of this folder ever came there
            return not self._read_record()
        return WRITER in there and self._last_writer == own

    def _token(self) -> Optional[bytes]:
        """That of the folder on this disk."""
        own = self.folder / WRITER
        return own.read_bytes() if own.exists() else None

    def _writer(self) -> Optional[bytes]:
        """What the store's folder says was the last to write there."""
        try:
            return stores.whole(f"{self.address}/{WRITER}")
        except stores.Missing:
            return None

    def _replace(self, there: dict[str, Any]) -> None:
        """Fetch the folder anew; one that has what the store never had is moved aside."""
        known, here = self._read_record(), self._files()
        new = (n for n, stamp in here.items() if known.get(n, {}).get("here") != stamp)
        if here and (WRITER not in there or any(name != WRITER for name in new)):
            target = free_name(self.folder)
            self.folder.rename(target)
            say(f"{self.address} is not as it was left; moved {self.folder}, a copy, to {target}")
        begun = self.folder.with_name(f".{self.folder.name}{SUFFIX}")
        for earlier in (self.folder, begun):
            if earlier.exists():
                shutil.rmtree(earlier)
        self._record.unlink(missing_ok=True)
        begun.mkdir()
        of_folders = {name: name.rpartition("/")[0] for name in there if ".pth/" in name}
        for name, stamp in there.items():
            whole = name not in of_folders or f"{of_folders[name]}/{REST}" in there
            if whole and name != WRITER:
                fetch(f"{self.address}/{name}", begun / name, stamp)
        _write_token(begun)  # with another's it would be taken for the last that wrote
        begun.rename(self.folder)
        files = self._files()
        self._stored = {n: {"here": files[n], "there": there[n]} for n in files if n != WRITER}
        self._write_record()

    def _keep(self) -> None:
        try:
            with user_errors(self.folder):
                if self._token() is None:
                    _write_token(self.folder)
                own = self._token()
                here = self._files()
                sent = {name: of["here"] for name, of in self._stored.items()}
                if here == sent:
                    return
                overtaken = self._writer() not in (None, self._last_writer, own)
                if not overtaken:
                    self._bring(here)
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

    def _bring(self, here: dict[str, list[int]]) -> None:
        """here: all `_files`."""
        changed = {n for n, at in here.items() if self._stored.get(n, {}).get("here") != at}
        gone = self._stored.keys() - here.keys()
        anew = {name.partition("/")[0] for name in changed}
        early = {n for n in gone if n.partition("/")[0] in anew or not _of_checkpoint(n)}
        # Of a checkpoint in parts that is written anew, what it is known by has to go first.
        markers = {n for n in changed & self._stored.keys() if n.endswith(f".pth/{REST}")}
        for name in _leaving(early | markers):
            self._remove(name)
        for name in sorted(changed, key=_turn):
            self._write(name, here)
        for name in _leaving(gone - early):
            self._remove(name)

    def _write(self, name: str, here: dict[str, list[int]]) -> None:
        # The best checkpoint is a second name of another, which the store has.
        same = (n for n, of in self._stored.items() if of["here"] == here[name] and n != name)
        source, target = next(same, None), f"{self.address}/{name}"
        if source is None:
            there = uploads.upload(self.folder / name, target)
        else:
            there = uploads.copy(f"{self.address}/{source}", target, here[name][0])
        self._stored[name] = {"here": here[name], "there": there}
        self._write_record()

    def _remove(self, name: str) -> None:
        uploads.remove(f"{self.address}/{name}")
        del self._stored[name]
        self._write_record()

    def _files(self) -> dict[str, list[int]]:
        """Size, time and inode of each file of the folder, by its name."""

        def stamped() -> Iterator[tuple[str, list[int]]]:
            for path in self.folder.rglob("*"):
                within = path.relative_to(self.folder)
                if path.is_file() and not any(part.endswith(SUFFIX) for part in within.parts):
                    known = path.stat()
                    stamp = [known.st_size, known.st_mtime_ns, known.st_ino]
                    yield within.as_posix(), stamp

        return dict(stamped())

    def _write_record(self) -> None:
        write_json({"address": self.address, "files": self._stored}, self._record)

    def _read_record(self) -> dict[str, dict[str, Any]]:
        try:
            return read_json(self._record)["files"]
        except (UserError, KeyError, TypeError):  # without it every file is written again
            return {}


def _write_token(folder: Path) -> None:
    write_json({"token": secrets.token_hex(8)}, folder / WRITER)


def _of_checkpoint(name: str) -> bool:
    return is_checkpoint(name.partition("/")[0])


def _is_marker(name: str) -> bool:
    """Whether this is what a checkpoint is known by: a file, or REST of a folder."""
    top, _, within = name.partition("/")
    return is_checkpoint(top) and top.endswith(".pth") and within in ("", REST)


def _leaving(names: Iterable[str]) -> list[str]:
    """Files in the order in which they are removed: first what checkpoints are known by."""
    return sorted(names, key=lambda name: (not _is_marker(name), name))


def _turn(name: str) -> tuple:
    """The order in which files are written; see the top."""
    top = name.partition("/")[0]
    if name == WRITER:
        return (0,)
    if name == SELECTED:
        return (5,)
    if top == BEST:
        return (4, _is_marker(name), name)
    if _of_checkpoint(name):
        kind = (2,) if name.endswith(".json") else (3, not top.startswith("weights_"), top)
        return (*kind, _is_marker(name), name)
    return (1, name.endswith("/metrics.json"), name)
