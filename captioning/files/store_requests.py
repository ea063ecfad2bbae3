"""Sends requests to object stores through fsspec, and retries requests that fail."""

import asyncio
from typing import Any, Callable

from captioning.runtime.errors import UserError

# {supported scheme: the library that fsspec needs for it}. For hf it is datasets, which installs
# both huggingface_hub, which implements the file system, and aiohttp.
LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "https": "aiohttp", "hf": "datasets"}
TRIES = 6  # requests in total, before a StoreError
PAUSE_S = 0.5  # after the first failure; doubled after each further failure
SILENCE_S = 30  # until an https server answers, and between the parts of its answer


class StoreError(UserError):
    """A store does not answer or refuses access. Skipping the requested file would not help."""


class NoAnswer(StoreError):
    """A request failed in a way that may be temporary."""


class Missing(UserError):
    """A store has no file of this name."""


def library_of(address: str) -> str:
    return LIBRARIES[address.partition("://")[0]]


def _system_of(address: str) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the path of the address within it."""
    import fsspec

    settings = {}
    if address.startswith("http"):
        import aiohttp

        # aiohttp's own limit of five minutes for an answer is too short for large files.
        timeout = aiohttp.ClientTimeout(None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
        settings["client_kwargs"] = {"timeout": timeout, "trust_env": True}  # uses proxies
    return fsspec.core.url_to_fs(address, use_listings_cache=False, **settings)


def call(address: str, method: str, *arguments: Any, **settings: Any) -> Any:
    """Call a method of the file system with the path of `address`; see `retry`."""
    return retry(
        address, lambda system, path: getattr(system, method)(path, *arguments, **settings)
    )


def retry(address: str, request: Callable[[Any, str], Any]) -> Any:
    """Return `request(system, path)`, see `_system_of`. Retry it after pauses if it fails.

    Raises UserError, at once if the file is missing or access is refused. The library's error may
    contain credentials, so that it is neither chained nor quoted.
    """
    import tenacity

    def attempt() -> Any:
        try:
            return request(*_system_of(address))
        except Exception as error:
            raise _user_error(address, error) from None

    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(TRIES),
        wait=tenacity.wait_exponential(PAUSE_S),
        retry=tenacity.retry_if_exception_type(NoAnswer),
        reraise=True,
    )(attempt)


def _user_error(address: str, error: Exception) -> UserError:
    # fsspec raises FileNotFoundError also for failed connections.
    if isinstance(error.__cause__, (OSError, asyncio.TimeoutError)):
        error = error.__cause__
    library, kind = library_of(address), type(error).__name__
    if isinstance(error, ImportError):
        return UserError(f"{address}: needs the {library} library: pip install {library}")
    answer = getattr(error, "response", None)  # set in huggingface_hub's errors
    status = getattr(error, "status", None) or getattr(answer, "status_code", None)
    if isinstance(error, FileNotFoundError) or status == 404:
        return Missing(f"{address}: no such file or bucket")
    if isinstance(error, PermissionError) or status in (401, 403) or kind == "NoCredentialsError":
        return StoreError(f"{address}: not allowed: give credentials where {library} finds them")
    return NoAnswer(
        f"{address}: {TRIES} requests failed ({kind}): check the address and the network, then run "
        "the same command again"
    )
