"""A server with OpenAI's chat interface that answers as a test wants."""

import json
from contextlib import contextmanager

from tests import servers


def said(*texts, finish_reason="stop", **fields):
    """Return the answer with these choices. fields: further fields of each message."""
    choices = [
        {"message": {"content": text, **fields}, "finish_reason": finish_reason} for text in texts
    ]
    return 200, {}, json.dumps({"choices": choices})


@contextmanager
def serving():
    """Run a server within the block, see `tests.servers`. Bodies of its answers are texts.

    It has `asked`, path, headers and body of the requests so far, `answers` to the next ones,
    `usual`, which returns the answers after these, and `models`, the answer to GET.
    """

    def answer(path, headers, body):
        found = server.models
        if body:
            server.asked.append((path, dict(headers), json.loads(body)))
            found = server.answers.pop(0) if server.answers else server.usual()
        return found if isinstance(found, str) else (*found[:2], found[2].encode())

    with servers.serving(answer) as server:
        server.url += "/v1"
        server.answers, server.asked, server.usual = [], [], lambda: said("well")
        server.models = (200, {}, "{}")
        yield server
