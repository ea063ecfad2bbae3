"""Tar shards by their names, and what is in them, as the webdataset library has it."""

import os
import re
import tarfile
from collections.abc import Iterator
from typing import Any, Optional

from captioning.files import stores
from captioning.runtime.errors import UserError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
LARGEST = 1 << 30  # bytes of a member; a few bytes of an archive may stand for any number
LARGEST_HEADERS = 1 << 20  # bytes before a member's own: long names, records, maps of holes

_META = re.compile(r"__[^/]*__(/|$)")  # what webdataset keeps about the tar itself


def is_tars(source: str) -> bool:
    path = source.partition("?")[0] if stores.is_store(source) else source
    return path.endswith(SUFFIXES)


def is_sample(name: str) -> bool:
    """Whether a member is part of a sample, by its name."""
    return not _META.match(name)


def key_and_suffix(name: str) -> tuple[Optional[str], str]:
    """What a sample's members have in common, None for a member of none, and the rest."""
    from webdataset.tariterators import base_plus_ext

    key, suffix = base_plus_ext(name)
    return key, (suffix or "").lower()


class Tar(tarfile.TarFile):
    """A tar to read from its beginning to its end, of which headers have a bound."""

    def __init__(self, name=None, mode="r", fileobj=None, **settings: Any):
        super().__init__(name, mode, _Metered(fileobj), **settings)

    def each(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members, none of which is kept. Raises TarError, EOFError and what a
        decompressor does."""
        for member in self:  # not by next(), which Python 3.9 fails in at the end of an empty tar
            self.members, self.pax_headers = [], {}
            self.fileobj.left = LARGEST_HEADERS
            yield member

    def content(self, member: tarfile.TarInfo) -> bytes:
        """The bytes of the member that `each` has just given."""
        self.fileobj.left += member.size
        return self.extractfile(member).read()


class _Metered:
    """A file of which `left` bytes may be read; tarfile reads a header of any size at once."""

    def __init__(self, file: Any):
        self.file, self.left = file, LARGEST_HEADERS

    def read(self, size: int) -> bytes:
        self.left -= size
        if self.left < 0:
            raise tarfile.ReadError(f"a header has more than {LARGEST_HEADERS:,} bytes")
        return self.file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def expand(source: str) -> list[str]:
    """The tars that a brace pattern such as shards/{00000..00099}.tar stands for.

    Raises UserError for a pattern that is none, and where a tar on disk is missing. Whether one of
    a store is there is seen when it is read.
    """
    from webdataset.shardlists import expand_urls

    if stores.is_store(source):
        stores.check_address(source)
    try:
        urls = expand_urls(source)
    except ValueError as error:
        raise UserError(f"{source}: not a pattern of tars: {error}") from None
    for url in filter(stores.is_store, urls):
        stores.check_address(url)
    missing = [url for url in urls if not stores.is_store(url) and not os.path.isfile(url)]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(urls)} tars are missing, the first is {missing[0]}"
        )
    return urls
