"""A server that answers huggingface_hub about one data set, `owner/birds`."""

import hashlib
import json
import re
from contextlib import contextmanager
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import fsspec
import pytest

from tests import servers

API, FILE = "/api/datasets/owner/birds", "/datasets/owner/birds/resolve/main/"


def tree(files, folder, recursive):
    """Return the entries of a folder, or of all within it."""
    entries = {}
    for name, data in files.items():
        for path in PurePosixPath(name).parents:
            entries[path] = {"type": "directory", "path": str(path), "oid": "1" * 40, "size": 0}
        digest = hashlib.sha1(data).hexdigest()
        file = {"type": "file", "path": name, "oid": digest, "size": len(data)}
        entries[PurePosixPath(name)] = file
    within = PurePosixPath(folder)
    return [
        entry
        for path, entry in entries.items()
        if path.parent == within != path or (recursive and within in path.parents)
    ]


@contextmanager
def serving(files):
    """Let hf://datasets/owner/birds have the files {name: bytes} within the block."""

    def answer(path, headers, body):
        path, query = unquote(urlsplit(path).path), urlsplit(path).query
        if path.startswith(f"{API}/tree/main"):
            folder = path[len(f"{API}/tree/main/") :]
            entries = tree(files, folder, "recursive=true" in query.lower())
            return 200, {}, json.dumps(entries).encode()
        if path.startswith(API):
            return 200, {}, json.dumps({"id": "owner/birds", "sha": "0" * 40}).encode()
        data = files.get(path.removeprefix(FILE))
        if data is None or not path.startswith(FILE):
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if span := re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", "")):
            first, last = map(int, span.groups())
            name = f"bytes {first}-{last}/{len(data)}"
            return 206, {"Content-Range": name}, data[first : last + 1]
        return 200, {}, data

    with servers.serving(answer) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setitem(fsspec.config.conf, "hf", {"endpoint": server.url})
        yield
