"""Requests to a server."""


def ask(url, body=None, method=None, **headers):
    """Return status, headers and body of the answer."""
    import httpx  # comes with Gradio

    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    method = method or ("GET" if body is None else "POST")
    answer = httpx.request(method, url, content=body, headers=headers, timeout=60)
    return answer.status_code, answer.headers, answer.content
