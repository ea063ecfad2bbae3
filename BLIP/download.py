"""Files from the network: resumed where they stopped, verified where a hash is known."""

import hashlib
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Optional, Union
from urllib.parse import unquote, urlsplit

import torch
from filelock import FileLock
from tqdm import tqdm

from BLIP.hub import hub_file

CHUNK = 1 << 20
TIMEOUT_S = 60


class DownloadError(ValueError):
    """What could not be fetched and why, in one line."""


def fetch(source: str) -> Path:
    """The local path of `source`: a path as it is, a URL or an hf:// name from the cache.

    https://host/file is kept in torch.hub's folder, under a name that the whole URL decides.
    hf://owner/name/file and hf://spaces/owner/name@revision/file go through huggingface_hub and
    its cache.
    Raises DownloadError.
    """
    if source.startswith("hf://"):
        return _fetch_from_hub(source)
    if source.startswith(("http://", "https://")):
        name = Path(unquote(urlsplit(source).path)).name
        if not name:
            raise DownloadError(f"{source} names no file")
        address = hashlib.sha256(source.encode()).hexdigest()[:8]
        destination = Path(torch.hub.get_dir()) / "checkpoints" / f"{address}-{name}"
        if not destination.exists():
            download(source, destination)
        return destination
    return Path(source)


def download(url: str, destination: Union[str, Path], sha256: Optional[str] = None) -> None:
    """Fetch `url` into the file `destination`, which appears only when it is whole.

    Where another process is at it, wait, and be content with what that one fetched.
    What an interrupted download left (destination.part) is continued where the server allows it
    and the file there has not changed. Shows a progress bar. Raises DownloadError.
    """
    destination = Path(destination)
    part = destination.with_name(destination.name + ".part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{part}.lock"):
            if destination.exists():
                return
            _continue_part(url, part)
            if sha256 is not None:
                _verify(url, part, sha256)
            os.replace(part, destination)
            _version_file(part).unlink(missing_ok=True)
        Path(f"{part}.lock").unlink(missing_ok=True)
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"cannot fetch {url} into {destination}: {reason}") from error


def _version_file(part: Path) -> Path:
    """Beside the part: which version of the file it is the beginning of."""
    return part.with_name(part.name + ".json")


def _continue_part(url: str, part: Path) -> None:
    headers, version_file = {}, _version_file(part)
    if part.exists() and version_file.exists():
        version = json.loads(version_file.read_text())
        headers = {"Range": f"bytes={part.stat().st_size}-", "If-Range": version}
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S
        )
    except urllib.error.HTTPError as error:
        if error.code != 416:  # the part is already the whole file
            raise
        return
    with response:
        resumed = response.status == 206
        have = part.stat().st_size if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        version = response.headers.get("ETag") or response.headers.get("Last-Modified")
        version_file.unlink(missing_ok=True)
        if version and not version.startswith("W/"):
            version_file.write_text(json.dumps(version))
        with (
            open(part, "ab" if resumed else "wb") as file,
            tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=part.stem) as bar,
        ):
            for chunk in iter(lambda: response.read(CHUNK), b""):
                file.write(chunk)
                bar.update(len(chunk))
    if total is not None and part.stat().st_size != total:
        raise DownloadError(
            f"{url} broke off after {part.stat().st_size} of {total} bytes; "
            "start again to continue it"
        )


def _verify(url: str, part: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with open(part, "rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        part.unlink()
        _version_file(part).unlink(missing_ok=True)
        raise DownloadError(f"{url} has sha256 {digest.hexdigest()}, expected {sha256}; removed it")


def _fetch_from_hub(source: str) -> Path:
    kinds = {"spaces": "space", "datasets": "dataset", "models": "model"}
    parts = source[len("hf://") :].split("/")
    repo_type = kinds[parts.pop(0)] if parts[0] in kinds else "model"
    if len(parts) < 3 or not all(parts):
        raise DownloadError(f"{source} is not hf://[spaces/]owner/name[@revision]/path/of/the/file")
    owner, (name, _, revision), filename = parts[0], parts[1].partition("@"), "/".join(parts[2:])
    try:
        return hub_file(f"{owner}/{name}", filename, repo_type, revision or None)
    except Exception as error:  # the hub client raises types of its own and of its HTTP library
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DownloadError(f"cannot fetch {source}: {reason}") from error
