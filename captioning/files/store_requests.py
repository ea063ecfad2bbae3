"""Sends requests to object stores through fsspec, and retries requests that fail."""

import time
from types import ModuleType
from typing import Any, Callable, TypeVar

from captioning.runtime.errors import UserError

T = TypeVar("T")

# {supported scheme: the library that fsspec needs for it}. For hf it is datasets, which installs
# both huggingface_hub, which implements the file system, and aiohttp.
LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "https": "aiohttp", "hf": "datasets"}

TRIES = 6  # requests in total, before a StoreError
PAUSE_S = 0.5  # after the first failure; doubled after each further failure


class StoreError(UserError):
    """A store does not answer or refuses access. Skipping the requested file would not help."""


class Missing(UserError):
    """A store has no file of this name."""


def system_of(address: str) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the path of the address within it."""
    import fsspec

    is_web = library_of(address) == "aiohttp"
    settings = {"get_client": web_module(address).client} if is_web else {}
    try:
        return fsspec.core.url_to_fs(address, use_listings_cache=False, **settings)
    except ImportError:
        raise _missing_library(address) from None


def web_module(address: str) -> ModuleType:
    """Return the module `web`. Raises UserError without aiohttp, which all LIBRARIES install."""
    try:
        from captioning.files import web
    except ImportError:
        raise _missing_library(address) from None
    return web


def library_of(address: str) -> str:
    return LIBRARIES[address.partition("://")[0]]


def _missing_library(address: str) -> UserError:
    library = library_of(address)
    return UserError(f"{address}: needs the {library} library: pip install {library}")


def call(address: str, method: str, *arguments: Any, **settings: Any) -> Any:
    """Call a method of the file system with the path of `address`; see `retry`."""

    def request() -> Any:
        system, path = system_of(address)
        return getattr(system, method)(path, *arguments, **settings)

    return retry(address, request)


def retry(address: str, request: Callable[[], T]) -> T:
    """Return `request()`. Retry it after pauses, unless the file is missing or access is refused.

    Raises UserError. The library's error may contain credentials, so that it is neither chained
    nor quoted.
    """
    web = web_module(address)
    breaker = web.circuit_breaker_of(address)
    if not breaker.allows_request():
        raise no_answer(address)
    for attempt in range(1, TRIES + 1):
        if attempt > 1:
            time.sleep(PAUSE_S * 2 ** (attempt - 2))
        try:
            result = request()
        except UserError:
            raise
        except Exception as error:
            problem = web.cause(error)
        else:
            breaker.record(None)
            return result
        if isinstance(problem, FileNotFoundError):
            refusal = no_such_file(address)
        elif isinstance(problem, web.Refused):
            refusal = UserError(f"{address}: {problem}")
        elif _is_denied(problem):
            refusal = StoreError(
                f"{address}: not allowed: give credentials where {library_of(address)} finds them"
            )
        else:
            refusal = None
        if refusal:
            breaker.record(None)
            raise refusal
        if address.startswith("http") and breaker.gives_up(attempt, problem):
            break
    breaker.record(problem)
    raise StoreError(
        f"{address}: {attempt} requests failed ({type(problem).__name__}): check the address "
        "and the network, then run the same command again"
    )


def _is_denied(error: Exception) -> bool:
    no_credentials = type(error).__name__ == "NoCredentialsError"
    answer = getattr(error, "response", None)  # set in huggingface_hub's errors
    status = getattr(error, "status", None) or getattr(answer, "status_code", None)
    return isinstance(error, PermissionError) or status in (401, 403) or no_credentials


def no_answer(address: str) -> StoreError:
    return StoreError(f"{address}: its server does not answer: try again in a minute")


def no_such_file(address: str) -> Missing:
    return Missing(f"{address}: no such file or bucket")
