"""A language model elsewhere that answers questions: any server with OpenAI's chat interface."""

import json
from pathlib import Path
from threading import Event, Lock
from typing import Optional

from captioning.files.cache import cache_key
from captioning.files.chat import ChatServer
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say

KEY = "JUDGE_API_KEY"  # of the environment


class Judge:
    """The model of that name at `url`, such as https://api.openai.com/v1, asked at temperature 0.

    What it replied is kept in `cache` under the model and the question. The key, if the server
    wants one, is JUDGE_API_KEY in the environment, and is written nowhere. Making one raises
    UserError for an address that cannot be used.
    """

    def __init__(self, url: Optional[str], model: Optional[str], cache: Path):
        if not url or not model:
            raise UserError(
                "metrics: clair needs judge_url and judge_model: a server with OpenAI's chat "
                "interface, such as https://api.openai.com/v1, and the name of a model there"
            )
        self.server = ChatServer(url, "judge_url", KEY)
        self.url, self.name, self.cache = self.server.url, model, cache
        self.told, self.telling = False, Lock()

    def check(self) -> None:
        """Raise UserError where nobody answers at the address, or the key is refused."""
        self.server.check()

    def known(self, question: str) -> Optional[str]:
        """Return what was replied to the question before, None if it was not asked."""
        try:
            kept = read_json(self._kept(question))
        except UserError:
            return None
        asked = isinstance(kept, dict) and (kept.get("model"), kept.get("question"))
        reply = kept.get("reply") if asked == (self.name, question) else None
        return reply if isinstance(reply, str) else None

    def keep(self, question: str, reply: str) -> None:
        """Keep a reply; a folder that cannot be written to is said, once, and no error."""
        content = {"model": self.name, "question": question, "reply": reply}
        try:
            write_json(content, self._kept(question))
        except UserError as error:
            with self.telling:  # several threads ask
                if not self.told:
                    say(f"replies are not kept: {error}")
                self.told = True

    def ask(self, question: str, given_up: Event) -> str:
        """Return the model's reply, asked for anew, however often the server has to be asked.

        given_up: set where nobody waits for the reply any more. Raises UserError.
        """
        body = {
            "model": self.name,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
        }
        return self.server.ask(body, given_up)[0] or ""

    def _kept(self, question: str) -> Path:
        return self.cache / f"{cache_key(json.dumps([self.name, question]))}.json"
