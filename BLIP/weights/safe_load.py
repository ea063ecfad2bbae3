"""Files of torch.save, read without running code from them."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals


class PickledError(ValueError):
    """A file cannot be read; the message is to follow the file's name."""


class HoldsObjectsError(PickledError):
    """A whole file that holds objects besides tensors."""


class LeftOut:
    """Placeholder for an object of a file. Every call that the file makes on it does nothing."""

    def __new__(cls, *_, **__):
        return super().__new__(cls)

    def _do_nothing(self, *_, **__):
        pass

    __init__ = __setstate__ = __setitem__ = _do_nothing


def read_pickled(path: Path, leave_out_objects: bool = False, mapped: bool = False) -> Any:
    """Return the tensors, numbers, text, lists and dicts of a file, on the CPU.

    torch's restricted unpickler reads it. Objects of other types raise HoldsObjectsError or, with
    `leave_out_objects`, become a LeftOut each. mapped: tensors are memory-mapped, without checking
    their checksums. Raises PickledError for a file that is damaged or needs more memory than disk.
    """
    objects = []
    try:
        archive = zipfile.is_zipfile(path)  # torch before 1.6 wrote another format
        if archive:
            _check_members(path)
            objects = sorted(get_unsafe_globals_in_checkpoint(str(path)))
            if objects and not leave_out_objects:
                raise HoldsObjectsError(f"holds objects that could run code ({', '.join(objects)})")
        with safe_globals([(LeftOut, name) for name in objects]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of other programs, refused below
            content = torch.load(
                path, map_location="cpu", weights_only=True, mmap=mapped and archive
            )
        if _tensor_bytes(content) > path.stat().st_size:  # torch 2.8 reads past the end of the file
            raise PickledError("is damaged: its tensors are said to be larger than the file")
        return content
    except (PickledError, FileNotFoundError):
        raise
    except Exception as error:  # a damaged file makes the unpickler raise any type of error
        reason = first_line(error)
        if "weights_only" in str(error):  # torch advises how to run the code in the file
            reason = "it holds more than tensors, numbers and text, or is no checkpoint"
        raise PickledError(f"is damaged: {reason}") from error


def _check_members(path: Path) -> None:
    """Refuse archives that grow when they are unpacked; torch.save compresses nothing."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if compressed or sum(member.file_size for member in members) > path.stat().st_size:
        raise PickledError("is damaged: it unpacks to more than its size")


def _tensor_bytes(content: Any) -> int:
    sizes, seen, waiting = {}, set(), [content]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:  # a pickle can hold a list twice, or in itself
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple)):
            waiting.extend(part)
        elif isinstance(part, Tensor) and part.layout is torch.strided and not part.is_meta:
            storage = part.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
