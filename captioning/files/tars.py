"""Tar shards in webdataset's format: their names, and their members read within limits."""

import os
import re
import tarfile
from collections.abc import Iterator
from typing import Any, Optional

from captioning.files import stores
from captioning.runtime.errors import UserError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
LARGEST = 1 << 30  # bytes of a member; a few bytes of an archive can unpack to any number
LARGEST_HEADERS = (
    1 << 20
)  # bytes of the headers before a member: long names, records, maps of holes

_META = re.compile(r"__[^/]*__(/|$)")  # webdataset's members about the tar itself


def is_tars(source: str) -> bool:
    path = source.partition("?")[0] if stores.is_store(source) else source
    return path.endswith(SUFFIXES)


def key_and_suffix(name: str) -> tuple[Optional[str], str]:
    """Return the key that members of a sample share, None for no sample, and the suffix."""
    from webdataset.tariterators import base_plus_ext

    key, suffix = (None, "") if _META.match(name) else base_plus_ext(name)
    return key, (suffix or "").lower()


class Tar(tarfile.TarFile):
    """A tar that is read sequentially, with limited headers."""

    def __init__(self, name=None, mode="r", fileobj=None, **settings: Any):
        super().__init__(name, mode, _Metered(fileobj), **settings)

    def each(self) -> Iterator[tarfile.TarInfo]:
        """Yield the members without keeping them. Raises TarError, EOFError, zlib.error."""
        for member in self:  # next() fails at the end of an empty tar in Python 3.9
            self.members, self.pax_headers = [], {}
            self.fileobj.left = LARGEST_HEADERS
            yield member

    def content(self, member: tarfile.TarInfo) -> bytes:
        """Return the bytes of the member that `each` has just yielded."""
        self.fileobj.left += member.size
        return self.extractfile(member).read()


class _Metered:
    """A file of which `left` bytes may be read; tarfile would read headers of any size at once."""

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
    """Return the tars of a brace pattern such as shards/{00000..00099}.tar.

    Raises UserError for a malformed pattern, and if a tar on disk is missing. One in a store is
    looked for when it is read.
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
