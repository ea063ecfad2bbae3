"""What Gradio 4, the last for Python 3.9, and Gradio 6 call differently."""

import inspect
from typing import Any, Callable

# No analytics, no fonts and no news from the network; Gradio reads them when it is imported.
SILENCE = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_RUN_HISTORY": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def taken(function: Callable, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that this version's function names as parameters."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in settings.items() if name in known}


def private(event: Callable) -> dict[str, Any]:
    """Arguments by which an event of the page is no endpoint for programs: /api/caption is."""
    return taken(event, {"api_visibility": "private", "show_api": False})
