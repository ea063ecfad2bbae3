"""Reads sharded checkpoints, folders of torch.distributed.checkpoint, without running their code.

A folder has the tensors model.KEY and optimizer.NUMBER.KEY, sharded as the processes of the run had
them. Everything else is in the file NON_TENSORS, which torch.save has written. torch reads the
shards. torch would also unpickle the index of the shards without restrictions, so that the index
could run code. Therefore this module reads the index with an unpickler that allows only
ALLOWED_CLASSES.
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

NON_TENSORS = "rest.pth"
INDEX = ".metadata"
# Prefixes of tensor names.
MODEL = "model."
OPTIMIZER = "optimizer."
# The classes and functions that torch's index refers to, by module. They run no code of the file.
# Dtypes are allowed, too.
ALLOWED_CLASSES = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "_MEM_FORMAT_ENCODING",
        "TensorStorageMetadata",
        "ChunkStorageMetadata",
    },
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}


def is_sharded(path: Path) -> bool:
    """Return whether the path is the folder of a sharded checkpoint."""
    return (path / NON_TENSORS).is_file()


def read_non_tensors(path: Path) -> dict[str, Any]:
    """Return everything in the folder except the tensors. Raises PickledError."""
    return read_pickled(path / NON_TENSORS)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the model's whole state dict, on the CPU. Raises PickledError."""
    unclaimed = sum(file.stat().st_size for file in path.iterdir())
    state = {}
    for name, (size, dtype) in tensor_sizes(path).items():
        if name.startswith(MODEL):
            unclaimed -= math.prod(size) * dtype.itemsize
            if unclaimed < 0:
                raise PickledError("is damaged: it states larger tensors than fit in its files")
            state[name] = torch.empty(size, dtype=dtype)
    fill_tensors(path, state, alone=True)
    return {name.removeprefix(MODEL): tensor for name, tensor in state.items()}


def tensor_sizes(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the size and dtype of each tensor by name. Raises PickledError."""
    try:
        index = _reader(path).read_metadata().state_dict_metadata
        for name, entry in index.items():
            if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(entry.size):
                raise PickledError(f"is damaged: it does not have all of {name}")
        return {name: (entry.size, entry.properties.dtype) for name, entry in index.items()}
    except PickledError:
        raise
    except Exception as error:  # the unpickler can raise any exception for a damaged file
        raise PickledError(f"is damaged: {first_line(error)}") from error


def fill_tensors(path: Path, tensors: Mapping[str, Tensor], alone: bool) -> None:
    """Copy the folder's values into tensors of the same sizes, which may be sharded in any way.

    tensors: the tensors to fill, by their names in the folder. alone: whether only this process
    reads. Otherwise all processes must call this function, and an error of one process is raised in
    all of them. Raises PickledError.
    """
    import torch.distributed.checkpoint as dcp

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that only one process reads
            dcp.load(dict(tensors), storage_reader=_reader(path), no_dist=alone)
    except (Exception, dcp.CheckpointException) as error:
        raise PickledError(f"is damaged: {first_line(first_failure(error))}") from error


def first_failure(error: BaseException) -> BaseException:
    """Return the error of the first process that failed.

    torch collects the errors of all processes in one exception. Any other error is returned as it
    is.
    """
    failures = getattr(error, "failures", None)
    return next(iter(failures.values()))[0] if failures else error


def _reader(path: Path):
    """Return torch's reader of a folder, which reads the index with the restricted unpickler."""
    from torch.distributed.checkpoint import FileSystemReader, metadata

    class Reader(FileSystemReader):
        def read_metadata(self, *args, **kwargs) -> metadata.Metadata:
            with open(path / INDEX, "rb") as file:
                index = _Unpickler(file).load()
            # Refuse entries other than tensors, which torch would unpickle, and file names with a
            # folder, so that no file outside the checkpoint is read.
            entries = index.state_dict_metadata.values()
            shards = index.storage_data.values()
            only_tensors = all(isinstance(e, metadata.TensorStorageMetadata) for e in entries)
            if not only_tensors or any(
                Path(p.relative_path).name != p.relative_path for p in shards
            ):
                raise PickledError("is damaged: it has more than tensors")
            index.storage_meta = metadata.StorageMeta(load_id=self.load_id)
            return index

    return Reader(path)


class _Unpickler(pickle.Unpickler):
    """An unpickler that raises PickledError for classes other than ALLOWED_CLASSES and dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in ALLOWED_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise PickledError(f"has objects that could run code ({module}.{name})")
