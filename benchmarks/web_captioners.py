"""Captions images with an export for transformers.js, in Node and in the page of docs/web.md.

Both caption one image at a time, and need Node 20 and web/node_modules (`npm ci --prefix web`). The
page also needs Chromium.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import REPOSITORY
from benchmarks.browser import Browser
from captioning.runtime.errors import UserError

MODEL_NAME = "model"  # the model's name in the page
DTYPES = {"fp32": "32 bits", "fp16": "16 bits", "q8": "8 bits"}  # {precision of weights: text}
ANSWER_TIMEOUT_S = 600.0  # how long an answer of the page may take, for example to load a model
# Adds a file input and the function `captionOf` to the page.
CAPTION_SCRIPT = f"""
const input = Object.assign(document.createElement("input"), {{ type: "file", id: "pixels" }});
document.body.append(input);
window.captioner = new Worker("worker.js", {{ type: "module" }});
window.captionOf = (request) => new Promise((resolve, reject) => {{
  captioner.onerror = ({{ message }}) => reject(new Error(message));
  captioner.onmessage = ({{ data }}) => {{
    if (data.kind === "caption") resolve(data);
    if (data.kind === "failed") reject(new Error(data.text));
  }};
  captioner.postMessage({{ id: 0, models: ["{MODEL_NAME}"], device: "wasm", ...request }});
}});
"""


def find_programs() -> str:
    """Return the path of Chromium.

    Raises UserError if Chromium, Node or the packages in web/node_modules are missing.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        raise UserError("Chromium is missing: install it, so that `chromium` is on the PATH")
    if not shutil.which("node") or not (REPOSITORY / "web/node_modules").is_dir():
        raise UserError("Node 20 or its packages are missing: npm ci --prefix web")
    return chromium


def build_page(export: Path, folder: Path) -> None:
    """Build the page in `folder`. export: the folder that `BLIP.export` has written."""
    command = ["node", "web/build.mjs", folder, f"{MODEL_NAME}={MODEL_NAME}={export}"]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)


class NodeCaptions(ExitStack):
    """Runs `web/captions.mjs` in Node. The process ends with the `with` block.

    export: the folder of the model. settings: decoding settings, such as {"num_beams": 3}. dtype: a
    key of DTYPES.
    """

    def __init__(self, export: Path, settings: Mapping[str, Any], dtype: str):
        command = ["node", "web/captions.mjs", export, "/dev/stdin", json.dumps(settings), dtype]
        super().__init__()
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._process = self.enter_context(process)
        self.callback(self._process.kill)

    def tokens(self, pixels: np.ndarray) -> list[int]:
        """Return the tokens of an image's caption. pixels: float32 (3, S, S)."""
        self._process.stdin.write(np.ascontiguousarray(pixels).tobytes())
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())["tokens"]


class PageCaptions(ExitStack):
    """Runs the page in Chromium. Chromium and the page's server end with the `with` block.

    page: the folder of the built page. profile: a folder for Chromium's files. pixels: a file of
    float32 (1, 3, S, S), the image that is captioned. threads: whether the server sends the headers
    that allow the page to use threads. Raises RuntimeError if a script of the page fails, and
    UserError if a program is missing.
    """

    def __init__(self, page: Path, profile: Path, pixels: Path, threads: bool):
        chromium = find_programs()
        command = ["node", "web/serve.mjs", page, "0"]
        if not threads:
            command.append("plain")
        super().__init__()
        with ExitStack() as stack:  # ends the programs if one of them does not start
            server = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
            stack.enter_context(server)
            stack.callback(server.kill)
            self._browser = stack.enter_context(Browser(chromium, profile, ANSWER_TIMEOUT_S))
            self._browser.open(server.stdout.readline().split()[-1])
            self._browser.wait("document.body && 'ready' in document.body.dataset")
            self._browser.ask(CAPTION_SCRIPT)
            self._browser.choose_files("#pixels", pixels)
            self.enter_context(stack.pop_all())
        if self._browser.ask("crossOriginIsolated") != threads:
            self.close()
            raise RuntimeError(
                f"the page {'cannot' if threads else 'can'} use threads; its headers differ"
            )

    def tokens(self, settings: Mapping[str, Any], dtype: str) -> list[int]:
        """Return the tokens of the image's caption. settings, dtype: see `NodeCaptions`."""
        code = f"""(async () => {{
          const [file] = document.querySelector("#pixels").files;
          const pixels = new Float32Array(await file.arrayBuffer());
          const request = {{ pixels, dtype: "{dtype}", settings: {json.dumps(settings)} }};
          return (await captionOf(request)).tokens;
        }})()"""
        return self._browser.ask(code)
