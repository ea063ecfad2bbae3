"""Manages a run's output folder: on this disk, or in an object store with a local working copy."""

from pathlib import Path, PurePosixPath

from captioning.files import stores
from captioning.files.cache import cache_folder, cache_key
from captioning.models.checkpoints import local_copy
from captioning.runtime import distributed
from captioning.training.stored_run import StoredRun


def working_folder(output_dir: str) -> Path:
    """Return the run's folder on this disk. A run in a store has its working copy in the cache."""
    if not stores.is_store(output_dir):
        return Path(output_dir)
    address = output_dir.rstrip("/")
    return cache_folder() / "runs" / f"{PurePosixPath(address).name}-{cache_key(address, 8)}"


class OutputFolder:
    """The output folder of a run, on disk or in a store. On disk, `begin` and `upload` do nothing.

    folder: the folder on this disk. address: the folder's address in the store; None on disk.
    stored_run: the run in the store; None on disk.
    """

    def __init__(self, output_dir: str):
        self.folder = working_folder(output_dir)
        self.address = output_dir.rstrip("/") if stores.is_store(output_dir) else None
        self.stored_run = StoredRun(self.address, self.folder) if self.address else None
        self._on_main_machine = True

    def begin(self) -> None:
        """Download the run from the store; see `StoredRun.begin`. All ranks call this.

        If rank 0 fails, raises UserError on all ranks.
        """
        if self.stored_run:
            distributed.run_on_main(self.stored_run.begin)
            # Tokens are compared, not host names, because two machines may have the same name.
            token = self.stored_run.token()
            self._on_main_machine = distributed.broadcast_from_main(token) == token

    def upload(self) -> None:
        """Upload new and changed files. All ranks call this.

        If rank 0 fails, raises UserError on all ranks.
        """
        if self.stored_run:
            distributed.run_on_main(self.stored_run.upload)

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
