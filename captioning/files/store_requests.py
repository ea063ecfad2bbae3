"""Sends requests to object stores through fsspec, and retries requests that fail."""

import asyncio
from typing import Any, Callable, Optional

from captioning.runtime.errors import UserError

# {supported scheme: the library that fsspec needs for it}. For hf it is datasets, which installs
# both huggingface_hub, which implements the file system, and aiohttp.
LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "https": "aiohttp", "hf": "datasets"}
TRIES = 6  # requests in total, before a StoreError
PAUSE_S = 0.5  # after the first failure; doubled after each further failure


class StoreError(UserError):
    """A store does not answer or refuses access. Skipping the requested file would not help."""


class Missing(UserError):
    """A store has no file of this name."""


def library_of(address: str) -> str:
    return LIBRARIES[address.partition("://")[0]]


def system_of(address: str) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the path of the address within it."""
    import fsspec

    settings = {}
    try:
        if address.startswith("http"):
            from captioning.files.web import client

            settings["get_client"] = client
        return fsspec.core.url_to_fs(address, use_listings_cache=False, **settings)
    except ImportError:
        library = library_of(address)
        raise UserError(f"{address}: needs the {library} library: pip install {library}") from None


def call(address: str, method: str, *arguments: Any, **settings: Any) -> Any:
    """Call a method of the file system with the path of `address`; see `retry`."""

    def request() -> Any:
        system, path = system_of(address)
        return getattr(system, method)(path, *arguments, **settings)

    return retry(address, request)


def retry(address: str, request: Callable[[], Any]) -> Any:
    """Return `request()`. Retry it after pauses, unless the file is missing or access is refused.

    Raises UserError. The library's error may contain credentials, so that it is neither chained
    nor quoted.
    """
    import tenacity

    tries = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(TRIES),
        wait=tenacity.wait_exponential(PAUSE_S),
        retry=tenacity.retry_if_exception(
            lambda error: isinstance(error, Exception) and _refusal(address, error) is None
        ),
        reraise=True,
    )
    try:
        return tries(request)
    except Exception as error:
        problem = _refusal(address, error) or StoreError(
            f"{address}: {TRIES} requests failed ({type(_cause(error)).__name__}): check the "
            "address and the network, then run the same command again"
        )
    raise problem


def _refusal(address: str, error: Exception) -> Optional[UserError]:
    """Return the error to raise at once; None if the request may succeed later."""
    error = _cause(error)
    if isinstance(error, UserError):
        return error
    answer = getattr(error, "response", None)  # set in huggingface_hub's errors
    status = getattr(error, "status", None) or getattr(answer, "status_code", None)
    if isinstance(error, FileNotFoundError) or status == 404:
        return Missing(f"{address}: no such file or bucket")
    no_credentials = type(error).__name__ == "NoCredentialsError"
    if isinstance(error, PermissionError) or status in (401, 403) or no_credentials:
        where = library_of(address)
        return StoreError(f"{address}: not allowed: give credentials where {where} finds them")
    return None


def _cause(error: Exception) -> Exception:
    """Return the failed connection, or our own error, for which fsspec raises FileNotFoundError."""
    known = (UserError, OSError, asyncio.TimeoutError)
    return error.__cause__ if isinstance(error.__cause__, known) else error
