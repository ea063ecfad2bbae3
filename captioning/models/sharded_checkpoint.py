"""Writes sharded checkpoints: each process writes its shards with torch.distributed.checkpoint.

A sharded checkpoint is a folder; see `BLIP.weights.sharded_checkpoint`. The folder has a temporary
name until it is complete and synced to disk.
"""

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from BLIP.weights.sharded_checkpoint import NON_TENSORS, first_failure
from captioning.files.writing import (
    SUFFIX,
    atomic_write,
    remove,
    replace,
    sync_folder,
    user_errors,
    write_json,
)
from captioning.runtime import distributed
from captioning.runtime.errors import UserError, one_line

CHECKSUMS = "checksums.json"  # in the folder: {file: CRC-32}
CHUNK_BYTES = 1 << 22  # read at once


def save_sharded(non_tensors: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a sharded checkpoint to the folder `path`. All ranks call this.

    non_tensors: everything except the tensors, which rank 0 writes. tensors: {name: tensor}; a
    tensor is sharded, or has the same values on all ranks. CHECKSUMS is written before the folder
    gets its final name. Raises UserError on all ranks.
    """
    import torch.distributed.checkpoint as dcp

    temporary = path.with_name(f".{path.name}{SUFFIX}")  # the same name on all ranks

    def begin():
        with user_errors(path):
            remove(temporary)
            temporary.mkdir()
            with atomic_write(temporary / NON_TENSORS) as file:
                torch.save(dict(non_tensors), file)

    distributed.run_on_main(begin)
    problem, files = None, {}
    try:
        dcp.save(
            dict(tensors), storage_writer=dcp.FileSystemWriter(str(temporary), sync_files=True)
        )
        shards = temporary.glob(f"__{distributed.rank()}_*")
        files = {part.name: _checksum(part) for part in shards}
    except (Exception, dcp.CheckpointException) as error:
        reason = first_failure(error)
        problem = getattr(reason, "strerror", None) or one_line(reason)
    rank_results = distributed.gather_on_main((problem, files))

    def end():
        for problem, rank_files in rank_results:
            if problem is not None:
                with suppress(OSError):  # frees space if the disk is full
                    remove(temporary)
                raise UserError(f"cannot write {path}: {problem}")
            files.update(rank_files)
        with user_errors(path):
            for part in temporary.iterdir():
                if part.name not in files:
                    files[part.name] = _checksum(part)
            write_json(files, temporary / CHECKSUMS)
            replace(temporary, path)
            sync_folder(path.parent)

    distributed.run_on_main(end)


def check_shards(path: Path) -> None:
    """Raise ValueError or OSError if a file of the folder differs from its checksum.

    A folder of an earlier version has no checksums, and is not checked.
    """
    if (path / CHECKSUMS).exists():
        for name, checksum in json.loads((path / CHECKSUMS).read_text()).items():
            if _checksum(path / name) != checksum:
                raise ValueError(f"{name} differs from what was written")


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
