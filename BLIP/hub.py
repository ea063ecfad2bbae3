"""A file of the Hugging Face hub, from its cache where there is no network."""

from pathlib import Path
from typing import Optional

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

TIMEOUT_S = 10


def hub_file(
    repository: str, filename: str, repo_type: str = "model", revision: Optional[str] = None
) -> Path:
    """The local path of a file, fetched if it is new.

    repo_type: "model", "space" or "dataset". Raises what the hub's client raises. That client tries
    again for half a minute where there is no network, so the hub is first asked once.
    """
    try:
        HfApi().repo_info(repository, repo_type=repo_type, revision=revision, timeout=TIMEOUT_S)
    except Exception:
        kept = try_to_load_from_cache(repository, filename, repo_type=repo_type, revision=revision)
        if isinstance(kept, str):  # else None, or a mark that the repository has no such file
            return Path(kept)
        raise
    return Path(hf_hub_download(repository, filename, repo_type=repo_type, revision=revision))
