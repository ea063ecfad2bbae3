"""Requests to a server."""

import json


def ask(url, body=None, method=None, params=None, **headers):
    """Return status, headers and body of the answer."""
    import httpx  # comes with Gradio

    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    method = method or ("GET" if body is None else "POST")
    # Loading certificates would take longer than the request.
    options = {"content": body, "params": params, "headers": headers, "verify": False}
    answer = httpx.request(method, url, timeout=60, **options)
    return answer.status_code, answer.headers, answer.content


def caption(server, path, **settings):
    """Return status and JSON of POST /api/caption with the file as body."""
    status, _, answer = ask(f"{server}/api/caption", path.read_bytes(), params=settings)
    return status, json.loads(answer)
