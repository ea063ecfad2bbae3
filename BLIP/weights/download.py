"""Files from the network and the Hugging Face hub: over TLS alone, resumed where they stopped,
verified where a hash is known, never larger than agreed."""

import base64
import hashlib
import http.client
import ipaddress
import json
import os
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Callable, Optional, Union
from urllib.parse import unquote, urlsplit

import torch
from filelock import FileLock
from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from tqdm import tqdm

from BLIP.weights.safe_load import first_line

CHUNK = 1 << 20
TIMEOUT_S = 60
HUB_TIMEOUT_S = 10
STORES = ("s3", "gs", "az")
LARGEST = 16 << 30  # bytes; with its optimiser a BLIP of ViT-L takes 5

# What gives the local path of a file with an address of another scheme, such as s3, where a
# program has put it; the programs of this package read no object stores.
FETCHERS: dict[str, Callable[[str], Path]] = {}


_HOST = re.compile(r"([^:]*|\[.*\])(:\d*)?")  # and a port


class DownloadError(ValueError):
    """What could not be fetched and why, in one line."""


def without_secrets(address: str) -> str:
    """An address as it may be shown: without its user, query and fragment. A path as it is."""
    found = re.match(r"([^/?#]*://)([^/?#]*@)?([^/?#@]*)([^?#]*)", address)
    if not found:
        return address
    scheme, _, host, path = found.groups()
    # A password with a slash, which no valid address has, would be left as the host and its port.
    return f"{scheme}{host}{path}" if _HOST.fullmatch(host) else f"{scheme}..."


def fetch(source: str) -> Path:
    """The local path of `source`: a path as it is, a URL or an hf:// name from the cache.

    https://host/file is kept in torch.hub's folder, under a name that the whole URL decides.
    hf://owner/name/file and hf://spaces/owner/name@revision/file go through huggingface_hub and
    its cache. Other schemes are FETCHERS'. Raises DownloadError, and what a fetcher does.
    """
    if source.startswith("hf://"):
        return _fetch_from_hub(source)
    scheme = source.partition("://")[0] if "://" in source else ""
    if scheme in FETCHERS:
        return FETCHERS[scheme](source)
    if scheme in STORES:
        raise DownloadError(
            f"{without_secrets(source)} is in an object store: fetch it first, with python -m "
            f"captioning.gather {without_secrets(source)} FILE"
        )
    if "://" in source:
        _check_tls(source)
        name = Path(unquote(urlsplit(source).path)).name
        if not name:
            raise DownloadError(f"{without_secrets(source)} names no file")
        address = hashlib.sha256(source.encode()).hexdigest()[:8]
        destination = Path(torch.hub.get_dir()) / "checkpoints" / f"{address}-{name}"
        if not destination.exists():
            download(source, destination)
        return destination
    return Path(source)


def download(
    url: str, destination: Union[str, Path], sha256: Optional[str] = None, largest: int = LARGEST
) -> None:
    """Fetch `url` into the file `destination`, which appears only when it is whole.

    Where another process is at it, wait, and be content with what that one fetched.
    What an interrupted download left (destination.part) is continued where the server allows it
    and the file there has not changed. url: with `user:password@` if need be. largest: in bytes.
    Shows a progress bar. Raises DownloadError.
    """
    destination, shown = Path(destination), without_secrets(url)
    part = destination.with_name(destination.name + ".part")
    _check_tls(url)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{part}.lock"):
            if destination.exists():
                return
            _continue_part(url, part, largest)
            if sha256 is not None and (found := _sha256(part)) != sha256:
                _remove(part)
                raise DownloadError(f"{shown} has sha256 {found}, expected {sha256}; removed it")
            os.replace(part, destination)
            _version_file(part).unlink(missing_ok=True)
        Path(f"{part}.lock").unlink(missing_ok=True)
    except DownloadError:
        raise
    except http.client.InvalidURL:  # it quotes the address
        raise DownloadError(f"cannot fetch {shown}: it is no valid address") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or first_line(error)
        raise DownloadError(f"cannot fetch {shown} into {destination}: {reason}") from error


def _check_tls(url: str) -> None:
    if not url.startswith("https://"):
        raise DownloadError(
            f"{without_secrets(url)} is not fetched: only https:// is, where nobody on the way can "
            "put another file in its place; use that, or fetch the file yourself and give its path"
        )


def private(url: str, proxies: bool = True) -> list[bool]:
    """Of each address of its host, whether it is of this machine or network alone.

    A host without an address here has no such one, nor has one that is asked through a proxy of the
    environment, which looks it up itself. proxies: whether these are used.
    """
    parts = urlsplit(url)
    proxied = proxies and parts.scheme in urllib.request.getproxies()
    if proxied and not urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return [False]
    try:
        found = socket.getaddrinfo(parts.hostname, None)
    except socket.gaierror:
        return [False]
    addresses = [ipaddress.ip_address(each[4][0]) for each in found]
    return [not (getattr(a, "ipv4_mapped", None) or a).is_global for a in addresses]


class _TlsRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect may lead to another host, but not out of TLS, nor into a private network."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        _check_tls(newurl)
        if any(private(newurl)) and not all(private(req.full_url)):
            raise DownloadError(
                f"{without_secrets(req.full_url)} leads to {urlsplit(newurl).hostname}, which is "
                "in a private network: fetch it yourself and give its path"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _version_file(part: Path) -> Path:
    """Beside the part: which version of the file it is the beginning of."""
    return part.with_name(part.name + ".json")


def _remove(part: Path) -> None:
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


def _request(url: str) -> urllib.request.Request:
    """One that sends the user and password of an address to its own host, and to no other."""
    parts = urlsplit(url)
    user, parted, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    if parted:
        login = base64.b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {login}")
    return request


def _continue_part(url: str, part: Path, largest: int) -> None:
    shown, request = without_secrets(url), _request(url)
    try:
        begun, version = part.stat().st_size, json.loads(_version_file(part).read_text())
    except (FileNotFoundError, ValueError):
        begun, version = 0, None
    if version and isinstance(version, str):
        request.add_header("Range", f"bytes={begun}-")
        request.add_header("If-Range", version)
    opener = urllib.request.build_opener(_TlsRedirects)
    try:
        response = opener.open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != 416 or error.headers.get("Content-Range") != f"bytes */{begun}":
            raise
        return  # the part is already the whole file
    with response:
        resumed = response.status == 206
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
            raise DownloadError(f"{shown}: the server sent another part than was asked for")
        have = begun if resumed else 0
        total = None if response.length is None else have + response.length
        if total is None and not response.chunked:
            raise DownloadError(
                f"{shown}: the server does not say how long the file is; fetch it yourself and "
                "give its path"
            )
        if total is not None and total > largest:
            _remove(part)
            raise DownloadError(f"{shown} has {total} bytes, more than the {largest} allowed here")
        version = response.headers.get("ETag") or response.headers.get("Last-Modified")
        _version_file(part).unlink(missing_ok=True)
        if version and not version.startswith("W/"):
            _version_file(part).write_text(json.dumps(version))
        with (
            open(part, "ab" if resumed else "wb") as file,
            tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=part.stem) as bar,
        ):
            for chunk in iter(lambda: response.read(CHUNK), b""):
                have += len(chunk)
                if have > largest:
                    _remove(part)
                    raise DownloadError(f"{shown} has more than the {largest} bytes allowed here")
                file.write(chunk)
                bar.update(len(chunk))
    if total is not None and have != total:
        raise DownloadError(
            f"{shown} broke off after {have} of {total} bytes; start again to continue it"
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _fetch_from_hub(source: str) -> Path:
    kinds = {"spaces": "space", "datasets": "dataset", "models": "model"}
    parts = source[len("hf://") :].split("/")
    repo_type = kinds[parts.pop(0)] if parts[0] in kinds else "model"
    if len(parts) < 3 or not all(parts) or {".", ".."} & set(re.split("[/@]", source)):
        raise DownloadError(
            f"{without_secrets(source)} is not hf://[spaces/]owner/name[@revision]/path/of/the/file"
        )
    owner, (name, _, revision), filename = parts[0], parts[1].partition("@"), "/".join(parts[2:])
    try:
        return hub_file(f"{owner}/{name}", filename, repo_type, revision or None)
    except Exception as error:  # the hub client raises types of its own and of its HTTP library
        raise DownloadError(f"cannot fetch {source}: {first_line(error)}") from error


def hub_file(
    repository: str, filename: str, repo_type: str = "model", revision: Optional[str] = None
) -> Path:
    """The local path of a file, fetched if it is new, over TLS and of the hash that the hub states.

    Without a network it comes from the cache. repo_type: "model", "space" or "dataset". Raises what
    the hub's client raises, and ValueError for a file above LARGEST or of another hash. That client
    tries again for half a minute where there is no network, so the hub is first asked once.
    """
    where = {"repo_type": repo_type, "revision": revision}
    kept = try_to_load_from_cache(repository, filename, **where)
    hub = HfApi()
    if not hub.endpoint.startswith("https://"):
        raise ValueError(f"HF_ENDPOINT is {hub.endpoint}: only https:// is used")
    try:
        info = hub.repo_info(repository, timeout=HUB_TIMEOUT_S, files_metadata=True, **where)
    except Exception:
        if isinstance(kept, str):  # else None, or a mark that the repository has no such file
            return Path(kept)
        raise
    stated = next((file for file in info.siblings or () if file.rfilename == filename), None)
    if stated is not None and (stated.size or 0) > LARGEST:
        raise ValueError(
            f"{filename} has {stated.size} bytes, more than the {LARGEST} allowed here"
        )
    path = Path(hf_hub_download(repository, filename, **where))
    lfs = stated and stated.lfs
    if lfs is not None and str(path) != kept and _sha256(path) != lfs.sha256:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ValueError(f"{path.name} has not the sha256 that the hub states; removed it")
    return path
