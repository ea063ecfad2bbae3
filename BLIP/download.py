"""Finds files by path, https address or hub name, and downloads what is not on this machine.

torch.hub downloads https addresses; huggingface_hub downloads and caches names of the hub.
"""

import hashlib
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Optional, Union
from urllib.parse import unquote, urlsplit

import torch
from filelock import FileLock
from huggingface_hub import snapshot_download

# Maps a URL scheme such as s3 to a function that downloads an address and returns the local path.
# This package cannot read object stores. `captioning.models` can, and adds its function here.
FETCHERS: dict[str, Callable[[str], Path]] = {}

# OWNER/NAME, or hf://[KINDs/]OWNER/NAME[@REVISION][/FILE]
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?<!\.pth)(?<!\.safetensors)")
_HUB_ADDRESS = re.compile(
    r"(?!.*\.\.)(?:hf://(?:(space|dataset|model)s/)?)?([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.+))?"
)
_MODEL_FILES = ("config.json", "*.index.json", "vocab.txt", "tokenizer*.json", "added_tokens.json")
_HOST = re.compile(r"([^:]*|\[.*\])(:\d*)?")  # a host and an optional port


class DownloadError(ValueError):
    """A file cannot be downloaded. The message is one line."""


def without_secrets(address: str) -> str:
    """Return an address without user, password, query and fragment. Return a path unchanged."""
    match = re.match(r"([^/?#]*://)([^/?#]*@)?([^/?#@]*)([^?#]*)", address)
    if not match:
        return address
    scheme, _, host, path = match.groups()
    # If the password contains a slash, which is invalid, `host` is a part of the password. Then
    # the whole address is hidden.
    return f"{scheme}{host}{path}" if _HOST.fullmatch(host) else f"{scheme}..."


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the error's type if the text is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def fetch(source: str) -> Path:
    """Return the local path of `source`, after downloading it if necessary.

    source is one of:
    - a path, which is returned unchanged;
    - https://host/file, which is cached in the folder of torch.hub under a name that contains a
      hash of the whole URL;
    - hf://owner/name/file or hf://spaces/owner/name@revision/file;
    - owner/name or hf://owner/name, a BLIP of the hub, whose folder is returned;
    - an address whose scheme is in FETCHERS.

    Raises DownloadError and the errors of fetchers.
    """
    scheme, separator, _ = source.partition("://")
    is_hub_name = _HUB_NAME.fullmatch(source) and not Path(source).exists()
    if not separator and not is_hub_name:
        return Path(source)
    if scheme in FETCHERS:
        return FETCHERS[scheme](source)
    safe_url = without_secrets(source)
    if is_hub_name or scheme == "hf":
        address = _HUB_ADDRESS.fullmatch(source)
        if not address:
            raise DownloadError(f"{safe_url} is not hf://[spaces/]owner/name[@revision][/file]")
        with _download_errors(source if separator else f"{source}, which is no path"):
            return _fetch_from_hub(*address.groups())
    name = Path(unquote(urlsplit(source).path)).name
    if scheme != "https" or not name:
        raise DownloadError(f"{safe_url} is no file's path or address at https:// or hf://")
    url_hash = hashlib.sha256(source.encode()).hexdigest()[:8]
    destination = Path(torch.hub.get_dir()) / "checkpoints" / f"{url_hash}-{name}"
    if not destination.exists():
        download(source, destination)
    return destination


def download(url: str, destination: Union[str, Path], sha256: Optional[str] = None) -> None:
    """Download `url` to the file `destination`, which appears only when it is complete.

    If several processes call this function, one process downloads the file and the other processes
    wait. sha256: the expected hash, in hexadecimal digits. Shows a progress bar. Raises
    DownloadError.
    """
    destination = Path(destination)
    lock = destination.with_name(f"{destination.name}.lock")
    with _download_errors(f"{without_secrets(url)} to {destination}"):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if not destination.exists():
                torch.hub.download_url_to_file(url, str(destination), sha256)
        lock.unlink(missing_ok=True)


@contextmanager
def _download_errors(what: str) -> Iterator[None]:
    """Within the block, turn any exception into a DownloadError of one line."""
    try:
        yield
    except Exception as error:  # huggingface_hub also raises errors of its HTTP library
        # The texts of http.client's errors may contain the whole address.
        is_private = isinstance(error, http.client.HTTPException)
        reason = type(error).__name__ if is_private else first_line(error)
        raise DownloadError(f"cannot download {what}: {reason}") from None


def _fetch_from_hub(
    kind: Optional[str], repository: str, revision: Optional[str], filename: Optional[str]
) -> Path:
    """Return the local path of a file of the hub, or of the folder of a BLIP without `filename`.

    Without a network, cached files are used. kind: "space", "dataset" or "model"; None is "model".
    revision: a branch, tag or commit; None for the default branch.
    """

    def cached(*patterns: str) -> Path:
        where = {"repo_type": kind, "revision": revision}
        return Path(snapshot_download(repository, allow_patterns=patterns, **where))

    if filename:
        path = cached(filename) / filename
        path.stat()  # raises FileNotFoundError
        return path
    folder = cached("*config.json")
    if (folder / "adapter_config.json").exists():
        return cached("adapter_*", "*config.json", *_MODEL_FILES)
    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    if model_type != "blip":  # its weights may have hundreds of GB
        raise ValueError(f"its model_type is {model_type}, not blip; see model: vlm")
    for weights in ("*.safetensors", "*.bin"):
        cached(*_MODEL_FILES, weights)
        if any(folder.glob(weights)):
            break
    return folder
