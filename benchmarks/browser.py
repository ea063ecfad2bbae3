"""Drives a headless Chromium through the DevTools protocol over two pipes, without a library."""

import base64
import contextlib
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

PATIENCE = 120.0  # the default of `patience`
# {name of a key: its Windows virtual key code, which the protocol needs}
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowLeft": 37}


class Browser:
    """A page in a new Chromium process. The process ends with the `with` block.

    program: the path of Chromium. profile: a folder for Chromium's files. patience: how many
    seconds any answer may take. The attribute `requests` has the URLs that the page has requested,
    and `problems` the uncaught errors of its scripts.
    """

    def __init__(self, program: str, profile: Path, patience: float = PATIENCE):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # Chromium reads commands from file descriptor 3 and writes answers to file descriptor 4.
        shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-sync",
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, None
        self._patience = patience
        self.requests = []
        self.problems = []
        try:
            self._attach()
        except BaseException:
            self._end(0)
            raise

    def _attach(self):
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "DOM"):
            self._call(f"{domain}.enable")

    def _end(self, patience: float):
        """Wait for Chromium to end. After `patience` seconds, kill it."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error) -> None:
        with contextlib.suppress(OSError):
            self._call("Browser.close")
        self._end(10)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol and return its result. Earlier events are recorded."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._patience
        while True:
            message = self._read_message(deadline)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._record_event(message)

    def _read_message(self, deadline: float) -> dict[str, Any]:
        """Return the next message, an answer or an event. deadline: in time.monotonic()."""
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise OSError("Chromium has gone")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _record_event(self, event: dict[str, Any]):
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of this size. dark: whether to prefer dark colour schemes."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def inject(self, script: str) -> str:
        """Run a script in every page that is opened from now on, before the page's own scripts.

        Returns an identifier of the script for `withdraw`.
        """
        return self._call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]

    def withdraw(self, script: str) -> None:
        """Do not run an injected script in further pages. script: what `inject` returned."""
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression. A promise is awaited first."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true. A promise is awaited first.

        Raises TimeoutError after `patience` seconds.
        """
        deadline = time.monotonic() + self._patience
        while not self.ask(f"(async () => Boolean(await ({expression})))()"):
            if time.monotonic() > deadline:
                body = self.ask("document.body.innerText")[:1500]
                raise TimeoutError(f"never true: {expression}\n{body}")
            time.sleep(0.05)

    def choose_files(self, selector: str, *paths: Path) -> None:
        """Choose files for an <input type=file>. selector: a CSS selector of the input."""
        found = self._call("Runtime.evaluate", expression=f"document.querySelector({selector!r})")
        files = [str(path) for path in paths]
        self._call("DOM.setFileInputFiles", files=files, objectId=found["result"]["objectId"])

    def press(self, key: str) -> None:
        """Press and release a key. key: a name in KEYS."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        self._call("Input.dispatchKeyEvent", type="keyUp", **event)

    def hover(self, selector: str) -> None:
        """Move the mouse to the middle of an element. selector: a CSS selector of the element."""
        box = self.ask(
            f"{{ const e = document.querySelector({selector!r});"
            " e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); [b.x + b.width / 2, b.y + b.height / 2] }"
        )
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def picture(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
