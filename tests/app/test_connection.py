"""Clients that send their request too slowly, or an endless head."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest

pytestmark = pytest.mark.slow

PATIENCE = 1.0


@pytest.fixture(scope="module")
def answering():
    """Return the address of a server with TimedConnection that answers the length of the body."""
    uvicorn = pytest.importorskip("uvicorn", reason="no Gradio, which brings uvicorn")
    from app import connection

    async def app(scope, receive, send):
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        if scope["path"] == "/late":
            await asyncio.sleep(1.5 * PATIENCE)
        text = str(size).encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    patience, connection.TIMEOUT_S = connection.TIMEOUT_S, PATIENCE
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, http=connection.TimedConnection, lifespan="off", log_level="error"
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        yield listening.getsockname()
        server.should_exit = True
        thread.join(30)
    connection.TIMEOUT_S = patience


def exchange(address, parts, pause):
    """Send the parts with pauses; return what is received until the server disconnects."""
    with socket.create_connection(address, timeout=60) as caller:
        received = b""

        def send():
            with contextlib.suppress(OSError):  # it has been closed
                for part in parts:
                    caller.sendall(part)
                    time.sleep(pause)

        sending = threading.Thread(target=send)
        sending.start()
        with contextlib.suppress(ConnectionError):
            while more := caller.recv(1 << 16):
                received += more
        sending.join()
    return received


HEAD = b"POST %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "pause"),
    [
        ([], 0),
        ([b"GET / HT"], 0),
        ([bytes([byte]) for byte in HEAD % (b"/", 0)], 0.2),
        ([HEAD % (b"/", 1000)], 0),
        ([HEAD % (b"/", 1000), *[b"x"] * 1000], 0.2),
    ],
    ids=["nothing", "half a head", "a slow head", "no body", "a slow body"],
)
def test_a_slow_client_is_disconnected(answering, parts, pause):
    assert exchange(answering, parts, pause) == b""


def test_a_slow_second_head_is_disconnected(answering):
    whole = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    assert exchange(answering, [whole, *[b"G"] * 50], 0.2).startswith(b"HTTP/1.1 200")


def test_a_long_request_that_keeps_coming_is_answered(answering):
    """Also a client that waits for a slow answer."""
    parts = [HEAD % (b"/", 20 * 40_000), *[bytes(40_000)] * 20]
    assert exchange(answering, parts, PATIENCE / 10).endswith(b"\r\n\r\n800000")
    late = exchange(answering, [HEAD % (b"/late", 3), b"abc"], 0)
    assert late.endswith(b"\r\n\r\n3")
