"""Reads files of torch.save without running code from them."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals


class PickledError(ValueError):
    """A file cannot be read.

    The message is a predicate such as "is damaged: ...". Callers put the name of the file before
    it.
    """


class HoldsObjectsError(PickledError):
    """A file is not damaged, but has objects other than tensors, numbers, text, lists and dicts."""


class OmittedObject:
    """A placeholder for an object that is left out.

    The file may make the unpickler call methods of the object. These methods do nothing.
    """

    def __new__(cls, *_, **__):
        return super().__new__(cls)

    def _do_nothing(self, *_, **__):
        pass

    __init__ = __setstate__ = __setitem__ = _do_nothing


def read_pickled(path: Path, leave_out_objects: bool = False, mapped: bool = False) -> Any:
    """Return the tensors, numbers, text, lists and dicts of a file, on the CPU.

    torch's restricted unpickler reads the file. An object of another type raises HoldsObjectsError
    or, with `leave_out_objects`, becomes an OmittedObject. mapped: memory-map the tensors, without
    verifying their checksums. Raises PickledError for a file that is damaged, and for a file that
    states more content than it has bytes.
    """
    object_types = []
    unclaimed = path.stat().st_size

    def keep_on_cpu(storage: torch.UntypedStorage, _):
        """Subtract the size of a storage from the bytes of the file. torch.load calls this.

        Raises PickledError if the file states more bytes than it has, because torch 2.8 would read
        past the end of the file.
        """
        nonlocal unclaimed
        unclaimed -= storage.nbytes()
        if unclaimed < 0:
            raise PickledError("is damaged: it states larger tensors than fit in the file")
        return storage

    try:
        is_archive = zipfile.is_zipfile(path)  # false for files of torch before 1.6
        if is_archive:
            _check_members(path)
            object_types = sorted(get_unsafe_globals_in_checkpoint(str(path)))
            if object_types and not leave_out_objects:
                raise HoldsObjectsError(
                    f"has objects that could run code ({', '.join(object_types)})"
                )
        with (
            safe_globals([(OmittedObject, name) for name in object_types]),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # torch warns about pickles of other programs
            return torch.load(path, keep_on_cpu, weights_only=True, mmap=mapped and is_archive)
    except (PickledError, FileNotFoundError):
        raise
    except Exception as error:  # the unpickler can raise any exception for a damaged file
        reason = first_line(error)
        if "weights_only" in str(error):  # torch's message explains how to run code in the file
            reason = "it has more than tensors, numbers and text, or is not a checkpoint"
        raise PickledError(f"is damaged: {reason}") from error


def _check_members(path: Path) -> None:
    """Raise PickledError for an archive that is compressed, or larger when unpacked.

    torch.save does not write such archives. A small file could otherwise fill the memory.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    is_compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if is_compressed or sum(member.file_size for member in members) > path.stat().st_size:
        raise PickledError("is damaged: its content is larger than the file")


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the error's type if the text is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
