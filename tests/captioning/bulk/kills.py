"""A store in memory whose listings are late, and hooks that kill a process at its files."""

import os
import signal
import sys
import time
from types import SimpleNamespace

from fsspec.implementations.local import LocalFileSystem

# Told by Python of every file that is opened, renamed, linked, removed or listed.
OPERATIONS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.scandir")
DELAY_S = 0.3  # until a listing has a new file


class LateStore(LocalFileSystem):
    """late://FOLDER/NAME is /FOLDER/NAME on a disk. A file appears when it is complete."""

    protocol = "late"

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + str(path).removeprefix("late://").strip("/")

    def unstrip_protocol(self, name):
        return f"late://{self._strip_protocol(name).lstrip('/')}"

    def _late(self, path):
        try:
            return time.time() - os.stat(path).st_mtime < DELAY_S
        except OSError:
            return True

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **settings):
        found = super().find(path, maxdepth, withdirs, detail=True, **settings)
        found = {n: i for n, i in found.items() if not (self._late(n) or n.endswith(".new"))}
        found = {n.lstrip("/"): info for n, info in found.items()}
        return found if detail else sorted(found)

    def _open(self, path, mode="rb", **settings):
        file = super()._open(path, mode, **settings)
        file.cache = SimpleNamespace(fetcher=None)  # as files of other stores have one
        return file

    def pipe_file(self, path, value, mode="overwrite", **settings):
        path = self._strip_protocol(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.{os.getpid()}.new", "wb") as file:
            file.write(value)
        os.replace(file.name, path)

    def put_file(self, lpath, rpath, **settings):
        with open(lpath, "rb") as file:
            self.pipe_file(rpath, file.read())


def use_late_store(rank=0):
    """A hook of `tests.processes`: make late:// a store."""
    import fsspec

    from captioning.files import store_requests

    fsspec.register_implementation("late", LateStore, clobber=True)
    store_requests.LIBRARIES["late"] = "fsspec"
    store_requests.PAUSE_S = 0.01


def kill_before(operation, folder, rank):
    """Return a hook that kills the process `rank` (-9) before its n-th operation in `folder`."""

    def hook(own_rank):
        left = operation

        def audit(event, given):
            nonlocal left
            if event in OPERATIONS and str(given[0]).startswith(str(folder)):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        if own_rank == rank:
            sys.addaudithook(audit)

    return hook
