"""A file of the Hugging Face hub, from its cache where there is no network."""

import hashlib
from pathlib import Path
from typing import Any, Optional

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

TIMEOUT_S = 10
LARGEST = 16 << 30  # bytes; with its optimiser a BLIP of ViT-L takes 5


def hub_file(
    repository: str, filename: str, repo_type: str = "model", revision: Optional[str] = None
) -> Path:
    """The local path of a file, fetched if it is new, over TLS and of the hash that the hub states.

    repo_type: "model", "space" or "dataset". Raises what the hub's client raises, and ValueError
    for a file above LARGEST or of another hash. That client tries again for half a minute where
    there is no network, so the hub is first asked once.
    """
    where = {"repo_type": repo_type, "revision": revision}
    kept = try_to_load_from_cache(repository, filename, **where)
    hub = HfApi()
    if not hub.endpoint.startswith("https://"):
        raise ValueError(f"HF_ENDPOINT is {hub.endpoint}: only https:// is used")
    try:
        info = hub.repo_info(repository, timeout=TIMEOUT_S, files_metadata=True, **where)
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
    if stated is not None and stated.lfs is not None and str(path) != kept:
        _verify(path, stated.lfs)
    return path


def _verify(path: Path, stated: Any) -> None:
    """Remove the file and raise ValueError where its hash is not that of the hub."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != stated.sha256:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ValueError(f"{path.name} has not the sha256 that the hub states; removed it")
