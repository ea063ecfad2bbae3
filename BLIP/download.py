"""Downloads files from https servers and the Hugging Face hub, and checks them.

huggingface_hub downloads and caches hf:// names. This module downloads https:// URLs itself. It
does not use `torch.hub.download_url_to_file`, which accepts truncated files, follows redirects to
http and into private networks, has no size limit and no timeout, and cannot log in.
"""

import base64
import hashlib
import http.client
import ipaddress
import os
import re
import socket
import urllib.request
from pathlib import Path
from typing import Callable, Optional, Union
from urllib.parse import unquote, urlsplit

import torch
from filelock import FileLock
from huggingface_hub import (
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from tqdm import tqdm

from BLIP.safe_load import first_line

CHUNK = 1 << 20
TIMEOUT_S = 60
HUB_TIMEOUT_S = 10
STORES = ("s3", "gs", "az")
# The size limit of a download in bytes. A checkpoint of BLIP ViT-L with its optimizer has 5 GB.
LARGEST = 16 << 30

# Maps a URL scheme such as s3 to a function that downloads an address and returns the local path.
# This package cannot read object stores. `captioning.models` can, and adds its function here.
FETCHERS: dict[str, Callable[[str], Path]] = {}

# hf://[KINDs/]OWNER/NAME[@REVISION]/FILE. The lookahead refuses hf://spaces/OWNER/NAME without a
# file, which would otherwise match as the file NAME of the repository spaces/OWNER.
_HUB_FILE = re.compile(
    r"hf://(?!(?:space|dataset|model)s/[^/]+/[^/]+$)(?:(space|dataset|model)s/)?([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)"
)
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


def fetch(source: str) -> Path:
    """Return the local path of `source`, after downloading it if necessary.

    source is one of:
    - a path, which is returned unchanged;
    - https://host/file, which is cached in the folder of torch.hub under a name that contains a
      hash of the whole URL;
    - hf://owner/name/file or hf://spaces/owner/name@revision/file, which huggingface_hub downloads;
    - an address whose scheme is in FETCHERS.

    Raises DownloadError and the errors of fetchers.
    """
    scheme, separator, _ = source.partition("://")
    if not separator:
        return Path(source)
    if scheme == "hf":
        return _fetch_from_hub(source)
    if scheme in FETCHERS:
        return FETCHERS[scheme](source)
    safe_url = without_secrets(source)
    if scheme in STORES:
        raise DownloadError(f"{safe_url} is in an object store: copy it to a file first")
    _check_tls(source)
    name = Path(unquote(urlsplit(source).path)).name
    if not name:
        raise DownloadError(f"{safe_url} does not name a file")
    url_hash = hashlib.sha256(source.encode()).hexdigest()[:8]
    destination = Path(torch.hub.get_dir()) / "checkpoints" / f"{url_hash}-{name}"
    if not destination.exists():
        download(source, destination)
    return destination


def download(
    url: str, destination: Union[str, Path], sha256: Optional[str] = None, largest: int = LARGEST
) -> None:
    """Download `url` to the file `destination`, which appears only when it is complete.

    If several processes call this function, one process downloads the file and the other processes
    wait. url: an https address, which may contain `user:password@`. sha256: the expected hash, in
    hexadecimal digits. largest: the size limit in bytes. Shows a progress bar. Raises
    DownloadError.
    """
    destination = Path(destination)
    safe_url = without_secrets(url)
    part = destination.with_name(destination.name + ".part")
    _check_tls(url)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{part}.lock"):
            try:
                if not destination.exists():
                    _receive(url, part, largest)
                    if sha256 is not None and (digest := _sha256(part)) != sha256:
                        raise DownloadError(f"{safe_url} has sha256 {digest}, expected {sha256}")
                    os.replace(part, destination)
            finally:
                part.unlink(missing_ok=True)
        Path(f"{part}.lock").unlink(missing_ok=True)
    except DownloadError:
        raise
    except http.client.InvalidURL:  # the error's text contains the whole address
        raise DownloadError(f"cannot download {safe_url}: the address is not valid") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or first_line(error)
        raise DownloadError(f"cannot download {safe_url} to {destination}: {reason}") from error


def _receive(url: str, part: Path, largest: int) -> None:
    """Write the body of the response to the file `part`.

    Raises DownloadError if the body exceeds `largest` bytes, ends early or has an unknown length.
    """
    safe_url = without_secrets(url)
    received = 0
    opener = urllib.request.build_opener(_TlsRedirects)
    with opener.open(_request(url), timeout=TIMEOUT_S) as response:
        total = response.length
        if total is None and not response.chunked:
            raise DownloadError(
                f"{safe_url}: the server does not send the file's length; download the file "
                "yourself and give its path"
            )
        with (
            open(part, "wb") as file,
            tqdm(total=total, unit="B", unit_scale=True, desc=part.stem) as bar,
        ):
            while chunk := response.read(CHUNK):
                received += len(chunk)
                if max(received, total or 0) > largest:
                    raise DownloadError(f"{safe_url} exceeds the limit of {largest} bytes")
                file.write(chunk)
                bar.update(len(chunk))
    if total not in (None, received):
        raise DownloadError(f"{safe_url} ended after {received} of {total} bytes; try again")


def _request(url: str) -> urllib.request.Request:
    """Return a request that sends user and password to the URL's host, but not after a redirect."""
    parts = urlsplit(url)
    user, separator, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    if separator:
        login = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {login}")
    return request


def _check_tls(url: str) -> None:
    if not url.startswith("https://"):
        raise DownloadError(
            f"{without_secrets(url)} is not downloaded: only https:// protects the file on its "
            "way; use https://, or download the file yourself and give its path"
        )


def are_private(url: str, proxies: bool = True) -> list[bool]:
    """Return a bool for each IP address of the URL's host: whether it is in a private network.

    Return [False] for a host that cannot be resolved, and for a host that is reached through a
    proxy, because the proxy resolves the name. proxies: whether the caller uses the proxies that
    the environment sets.
    """
    parts = urlsplit(url)
    uses_proxy = proxies and parts.scheme in urllib.request.getproxies()
    if uses_proxy and not urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return [False]
    try:
        resolved = socket.getaddrinfo(parts.hostname, None)
    except socket.gaierror:
        return [False]
    addresses = [ipaddress.ip_address(info[4][0]) for info in resolved]
    return [
        not (getattr(address, "ipv4_mapped", None) or address).is_global for address in addresses
    ]


class _TlsRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects to http, and redirects from a public host into a private network."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        _check_tls(newurl)
        if any(are_private(newurl)) and not all(are_private(req.full_url)):
            raise DownloadError(
                f"{without_secrets(req.full_url)} redirects to {urlsplit(newurl).hostname}, which "
                "is in a private network: download the file yourself and give its path"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _fetch_from_hub(source: str) -> Path:
    """Return the local path of an hf:// name, after downloading it. Raises DownloadError."""
    match = _HUB_FILE.fullmatch(source)
    if not match or {"", ".", ".."} & set(re.split("[/@]", source.removeprefix("hf://"))):
        raise DownloadError(
            f"{without_secrets(source)} is not hf://[spaces/]owner/name[@revision]/path/of/the/file"
        )
    kind, repository, revision, filename = match.groups()
    try:
        return hub_file(repository, filename, kind or "model", revision)
    except Exception as error:  # huggingface_hub also raises errors of its HTTP library
        raise DownloadError(f"cannot download {source}: {first_line(error)}") from error


def hub_file(
    repository: str, filename: str, repo_type: str = "model", revision: Optional[str] = None
) -> Path:
    """Return the local path of a file of the hub, after downloading a new or changed file.

    If the hub does not answer, the cached file is used. repo_type: "model", "space" or "dataset".
    revision: a branch, tag or commit; None for the default branch.

    `hf_hub_download` alone retries for half a minute if there is no network, and checks no hash.
    Therefore this function first requests the file's metadata. Raises huggingface_hub's errors, and
    ValueError for a file that is larger than LARGEST or whose hash differs from the hub's.
    """
    location = {"repo_type": repo_type, "revision": revision}
    cached = try_to_load_from_cache(repository, filename, **location)
    url = hf_hub_url(repository, filename, **location)
    if not url.startswith("https://"):
        raise ValueError(f"HF_ENDPOINT gives {without_secrets(url)}: only https:// is allowed")
    try:
        metadata = get_hf_file_metadata(url, timeout=HUB_TIMEOUT_S)
    except Exception as error:
        # LocalEntryNotFoundError, a subclass of EntryNotFoundError, means that there is no network.
        no_network = isinstance(error, LocalEntryNotFoundError)
        was_removed = isinstance(error, EntryNotFoundError) and not no_network
        # If no file is cached, `cached` is None or an object that marks a missing file.
        if was_removed or not isinstance(cached, str):
            raise
        return Path(cached)
    if (metadata.size or 0) > LARGEST:
        raise ValueError(
            f"{filename} has {metadata.size} bytes, which exceeds the limit of {LARGEST} bytes"
        )
    path = Path(hf_hub_download(repository, filename, **location))
    # The etag of a large file is its sha256. A small file has the SHA-1 of its git blob instead.
    has_sha256 = len(metadata.etag or "") == 64
    if has_sha256 and str(path) != cached and _sha256(path) != metadata.etag:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ValueError(
            f"{path.name} does not have the sha256 that the hub states; the file was removed"
        )
    return path
