"""Tar shards by their names, and the names of what is in them, as the webdataset library has it."""

import os
import re
from typing import Optional

from captioning.files import stores
from captioning.runtime.errors import UserError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
LARGEST = 1 << 30  # bytes of a member; a few bytes of an archive may stand for any number

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
