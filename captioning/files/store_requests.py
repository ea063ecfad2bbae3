"""Sends requests to object stores through fsspec, and retries requests that fail."""

import asyncio
from typing import Any, Callable

from captioning.runtime.errors import UserError

# {supported scheme: the library that fsspec needs for it}. For hf it is datasets, which installs
# both huggingface_hub, which implements the file system, and aiohttp.
LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "https": "aiohttp", "hf": "datasets"}
TRIES = 6  # requests in total, before a StoreError
PAUSE_S = 0.5  # after the first failure; doubled after each further failure


class StoreError(UserError):
    """A store does not answer or refuses access. Skipping the requested file would not help."""


class NoAnswer(StoreError):
    """A request failed in a way that may be temporary."""


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
    return retry(
        address, lambda system, path: getattr(system, method)(path, *arguments, **settings)
    )


def retry(address: str, request: Callable[[Any, str], Any]) -> Any:
    """Return `request(system, path)`, see `system_of`. Retry it after pauses if it fails.

    Raises UserError, at once if the file is missing or access is refused. The library's error may
    contain credentials, so that it is neither chained nor quoted.
    """
    import tenacity

    def attempt() -> Any:
        try:
            return request(*system_of(address))
        except Exception as error:
            problem = _user_error(address, error)
        raise problem

    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(TRIES),
        wait=tenacity.wait_exponential(PAUSE_S),
        retry=tenacity.retry_if_exception_type(NoAnswer),
        reraise=True,
    )(attempt)


def _user_error(address: str, error: Exception) -> UserError:
    # fsspec raises FileNotFoundError also for failed connections, and for our own errors.
    if isinstance(error.__cause__, (UserError, OSError, asyncio.TimeoutError)):
        error = error.__cause__
    if isinstance(error, UserError):
        return error
    answer = getattr(error, "response", None)  # set in huggingface_hub's errors
    status = getattr(error, "status", None) or getattr(answer, "status_code", None)
    if isinstance(error, FileNotFoundError) or status == 404:
        return Missing(f"{address}: no such file or bucket")
    kind = type(error).__name__
    if isinstance(error, PermissionError) or status in (401, 403) or kind == "NoCredentialsError":
        where = library_of(address)
        return StoreError(f"{address}: not allowed: give credentials where {where} finds them")
    return NoAnswer(
        f"{address}: {TRIES} requests failed ({kind}): check the address and the network, then run "
        "the same command again"
    )
