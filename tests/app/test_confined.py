"""No server but its own: a policy on every answer, and no page that names another."""

import asyncio

from app.confined import POLICY, Confined


def answer_of(kind, *parts):
    """Headers and body of what an application of these parts answers."""
    length = (b"content-length", str(sum(map(len, parts))).encode())

    async def application(scope, receive, send):
        headers = [(b"content-type", kind), length]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, part in enumerate(parts):
            more = number + 1 < len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": more})

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Confined(application)({"type": "http"}, None, send))
    return dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


def test_links_to_other_servers_are_taken_out_of_a_page():
    parts = (
        b'<link rel="preconnect" href="https://fonts.example" /><link href="theme.css"><scr',
        b'ipt\n src="https://cdn.example/a.js" async></script><script>let a = 1</script>',
    )
    headers, body = answer_of(b"text/html; charset=utf-8", *parts)
    assert body == b'<link href="theme.css"><script>let a = 1</script>'
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"content-security-policy"] == POLICY.encode()


def test_other_answers_keep_their_bytes():
    headers, body = answer_of(b"application/json", b'"<link href=', b'https://a.example>"')
    assert body == b'"<link href=https://a.example>"'
    assert headers[b"content-security-policy"] == POLICY.encode()
