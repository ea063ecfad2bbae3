"""Checkpoints in parts: folders that torch.distributed.checkpoint wrote, read without running
anything that is in them.

A folder holds tensors, by the names model.KEY and optimizer.NUMBER.KEY, each cut as the processes
had it; and REST, which is all else and, as torch.save has it, what `read_pickled` reads.
"""

import math
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from BLIP.weights.safe_load import PickledError, first_line, read_pickled

REST, INDEX = "rest.pth", ".metadata"
MODEL, OPTIMIZER = "model.", "optimizer."  # what names begin with
# What torch's index is made of, besides types of numbers; none does anything but hold values.
KNOWN = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING"),
        *("TensorStorageMetadata", "ChunkStorageMetadata"),
    },
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}


def is_sharded(path: Path) -> bool:
    """Whether this is such a folder, rather than a file or a run's folder."""
    return (path / REST).is_file()


def read_rest(path: Path) -> dict[str, Any]:
    """All but the tensors. Raises PickledError."""
    return read_pickled(path / REST)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The model's state dict, whole, on the CPU. Raises PickledError."""
    known = {name: told for name, told in sizes(path).items() if name.startswith(MODEL)}
    if sum(math.prod(size) * dtype.itemsize for size, dtype in known.values()) > _bytes(path):
        raise PickledError("is damaged: its tensors are said to be larger than its files")
    found = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in known.items()}
    fill(path, found, alone=True)
    return {name[len(MODEL) :]: tensor for name, tensor in found.items()}


def sizes(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Of each tensor, by its name. Raises PickledError."""
    try:
        index = _reader(path).read_metadata().state_dict_metadata
        for name, told in index.items():
            if sum(math.prod(chunk.sizes) for chunk in told.chunks) != math.prod(told.size):
                raise PickledError(f"is damaged: it does not have all of {name}")
        return {name: (told.size, told.properties.dtype) for name, told in index.items()}
    except PickledError:
        raise
    except Exception as error:  # an unpickler raises whatever a broken file makes it stumble over
        raise PickledError(f"is damaged: {first_line(error)}") from error


def fill(path: Path, tensors: Mapping[str, Tensor], alone: bool) -> None:
    """Copy what the folder has into tensors of the same sizes, plain or divided in any way.

    alone: no other process is asked; otherwise all ask, and what one cannot read is raised on all.
    Raises PickledError.
    """
    import torch.distributed.checkpoint as dcp

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of one process, which is meant
            dcp.load(dict(tensors), storage_reader=_reader(path), no_dist=alone)
    except (Exception, dcp.CheckpointException) as error:
        raise PickledError(f"is damaged: {first_line(cause(error))}") from error


def cause(error: BaseException) -> BaseException:
    """What the first of the processes that failed met, where torch tells of all of them."""
    failures = getattr(error, "failures", None)
    return next(iter(failures.values()))[0] if failures else error


def _reader(path: Path):
    """torch's reader of a folder, but for its index: that is a pickle, and restricted to KNOWN."""
    from torch.distributed.checkpoint import FileSystemReader, metadata

    class Reader(FileSystemReader):
        def read_metadata(self, *args, **kwargs) -> metadata.Metadata:
            with open(path / INDEX, "rb") as file:
                index = _Unpickler(file).load()
            # torch would run what is in an entry of another kind, and read files elsewhere.
            entries, places = index.state_dict_metadata.values(), index.storage_data.values()
            tensors = all(isinstance(e, metadata.TensorStorageMetadata) for e in entries)
            if not tensors or any(Path(p.relative_path).name != p.relative_path for p in places):
                raise PickledError("is damaged: it holds more than tensors")
            index.storage_meta = metadata.StorageMeta(load_id=self.load_id)
            return index

    return Reader(path)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = name in KNOWN.get(module, ())
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise PickledError(f"holds objects that could run code ({module}.{name})")


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())
