"""What torch.save wrote, read without running anything that is in the file."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

ARCHIVE = b"PK\3\4"  # how a file begins; those of torch before 1.6 are no archives


class PickledError(ValueError):
    """Why a file cannot be read, in words that go after its name."""


class HoldsObjectsError(PickledError):
    """A whole file, but with objects besides tensors in it."""


class LeftOut:
    """What stands where an object was. Whatever the file would have done with it does nothing."""

    def __new__(cls, *_, **__):
        return super().__new__(cls)

    def _do_nothing(self, *_, **__):
        pass

    __init__ = __setstate__ = __setitem__ = _do_nothing


def read_pickled(path: Path, leave_out_objects: bool = False, mapped: bool = False) -> Any:
    """Return the tensors, numbers, text, lists and dicts of a file, on the CPU.

    torch's restricted unpickler reads it, which knows how to build these and nothing else. Objects
    of other types raise HoldsObjectsError or, with `leave_out_objects`, become a LeftOut each.
    mapped: tensors are read when they are looked at, their checksums never.
    Raises PickledError for a file that is not whole, or that takes more memory than disk.
    """
    names = []
    try:
        with open(path, "rb") as file:
            is_archive = file.read(len(ARCHIVE)) == ARCHIVE
        if is_archive:
            _check_members(path)
            names = sorted(get_unsafe_globals_in_checkpoint(str(path)))
            if names and not leave_out_objects:
                raise HoldsObjectsError(f"holds objects that could run code ({', '.join(names)})")
        with safe_globals([(LeftOut, name) for name in names]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that are not torch's, then refused
            content = torch.load(
                path, map_location="cpu", weights_only=True, mmap=mapped and is_archive
            )
        if _tensor_bytes(content) > path.stat().st_size:  # torch 2.8 would read beyond its end
            raise PickledError("is damaged: its tensors are said to be larger than the file")
        return content
    except (PickledError, FileNotFoundError):
        raise
    except Exception as error:  # an unpickler raises whatever a broken file makes it stumble over
        reason = first_line(error)
        if "weights_only" in str(error):  # torch's advice how to run what is in the file
            reason = "it holds more than tensors, numbers and text, or is no checkpoint"
        raise PickledError(f"is damaged: {reason}") from error


def _check_members(path: Path) -> None:
    """torch.save compresses nothing: what unpacks to more than itself is no work of it."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if compressed or sum(member.file_size for member in members) > path.stat().st_size:
        raise PickledError("is damaged: it unpacks to more than its size")


def _tensor_bytes(content: Any) -> int:
    sizes, seen, waiting = {}, set(), [content]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:  # a pickle can hold a list that holds itself
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
    """The first line of what an error says, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
