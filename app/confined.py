"""A page that reaches no server but its own, whatever a library's page would like to load."""

import re

# Obeyed by the browser: fonts, scripts and pictures of others are not asked for.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; "
    "form-action 'self'"
)
# What a policy does not stop: connections that Gradio 4 has the browser open in advance.
ELSEWHERE = re.compile(rb"<link[^>]*https://[^>]*>|<script[^>]*https://[^>]*>\s*</script>")


class Confined:
    """An ASGI application whose every answer carries POLICY, and whose pages name no server."""

    def __init__(self, application):
        self.application = application

    async def __call__(self, scope, receive, send):
        start, page = {}, bytearray()

        async def send_confined(message):
            nonlocal start
            if message["type"] == "http.response.start":
                policy = (b"content-security-policy", POLICY.encode())
                message = {**message, "headers": [*message["headers"], policy]}
                if (b"content-type", b"text/html; charset=utf-8") in message["headers"]:
                    start = message  # its length is known when all of it is there
                    return
            elif start:
                page.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                body = ELSEWHERE.sub(b"", page)
                headers = [pair for pair in start["headers"] if pair[0] != b"content-length"]
                headers.append((b"content-length", str(len(body)).encode()))
                await send({**start, "headers": headers})
                message = {**message, "body": body}
            await send(message)

        await self.application(scope, receive, send_confined)
