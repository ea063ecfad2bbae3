"""Captions images with a model on an OpenAI-compatible server, such as vLLM or llama.cpp."""

import base64
import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Callable, Optional, Union

from PIL import Image

from captioning.bulk.request import Request
from captioning.bulk.work import Batch
from captioning.config import Config
from captioning.data.image import load_image
from captioning.data.randomness import derived_seed
from captioning.files.chat import STOP_CHECK_S, ChatServer, Reply, RequestFailed
from captioning.runtime import signals
from captioning.runtime.errors import UserError

KEY_VARIABLE = "CAPTION_API_KEY"  # environment variable with the server's API key
PROMPT = "Describe this image in one sentence."
CONCURRENCY = 32  # default
DEFAULTS = {"num_workers": 2, "max_length": 256}  # of keys of the configuration
AHEAD = 4  # batches that are requested in advance

MAX_SIDE = 1344  # pixels; larger images are shrunk
QUALITY = 95  # of the JPEGs that are sent

# Keys of the configuration that are fields of a request; only vLLM and SGLang have the last two.
SAMPLING = ("temperature", "top_p", "top_k")
FIELDS = (*SAMPLING, "repetition_penalty")


@dataclass
class ServedModel:
    """A captioner with the interface of `CheckpointModel` that sends images to a server.

    - name: the model's name at the server
    - settings: the prompt, and fields of each request. Each image's seed is derived from the seed.
    - batch_size: requests at once
    - num_workers: processes that read images

    To check the server, the constructor requests a caption of a grey image. It raises UserError if
    the server does not answer, refuses, or returns another number of captions than requested.
    """

    name: str
    url: str
    settings: dict[str, Any]
    batch_size: int
    num_workers: int
    collate, filter = list, None

    def __post_init__(self):
        self.read, self.server = as_data_url, ChatServer(self.url, "--url", KEY_VARIABLE)
        self.origin = {"checkpoint": self.name, "settings": self.settings}
        self.report = f"captions of {self.name} at {self.server.url}, {self.batch_size} at once"
        self.num_return = self.settings.get("n", 1)
        replies = self._ask(GREY)
        if len(replies) != self.num_return:
            few = f"got {len(replies)} captions instead of {self.num_return}"
            raise UserError(f"{self.server.url}: {few}; use --num_return 1")

    def prefetch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Submit the requests of the batches in advance; yield the batches with futures as `image`.

        `image` becomes a list of one future per readable image. So many requests are queued that
        stragglers do not block others.
        """
        waiting, pool = deque(), ThreadPoolExecutor(self.batch_size)
        try:
            for batch in batches:
                readable = [entry for entry in batch.entries if "error" not in entry]
                images = zip(batch.image or (), readable)
                futures = [pool.submit(self._ask_for, *each) for each in images]
                waiting.append(batch._replace(image=futures))
                while sum(len(each.image) for each in waiting) > AHEAD * self.batch_size:
                    yield waiting.popleft()
            yield from waiting
        finally:  # also if the caller stops early
            pool.shutdown(wait=False, cancel_futures=True)

    def captions(self, batch: Batch) -> Iterator[Union[list[dict[str, Any]], str]]:
        """Return what `_ask_for` returns for each image of a batch from `prefetch`.

        Raises UserError if the server fails, and Stopped after a signal.
        """
        return map(_result, batch.image)

    def _ask_for(
        self, image: str, entry: dict[str, Any], rounds: int = 2
    ) -> Union[list[dict[str, Any]], str]:
        """Return an image's captions, or why it has none although the server works.

        rounds: how often the image is tried while the server answers for another. Raises UserError
        if the cause is the server.
        """
        name = entry["image"]
        try:
            replies = self._ask(image, name, entry.get("prompt"))
        except RequestFailed as error:
            try:
                self._ask(GREY)
            except RequestFailed as failure:
                again = "run the same command again to continue"
                raise UserError(f"{failure}; {again}") from None
            if error.is_temporary and rounds > 1:
                return self._ask_for(image, entry, rounds - 1)
            return f"{name}: {error}"
        captions = [
            {"caption": text, "cut": reply.is_cut}
            for reply in replies
            if (text := " ".join(reply.text.split()))
        ]
        is_any_cut = any(reply.is_cut for reply in replies)
        if len(captions) != self.num_return:
            advice = ": raise max_length" if is_any_cut else ""
            return f"{name}: the answer has {len(captions)} of {self.num_return} captions{advice}"
        return captions if is_any_cut else [{"caption": each["caption"]} for each in captions]

    def _ask(self, image: str, name: str = "", prompt: Optional[str] = None) -> list[Reply]:
        """Send an image. image: a data URL. prompt: replaces the prompt of the run."""
        fields = {**self.settings, "model": self.name}
        text = {"type": "text", "text": prompt or fields["prompt"]}
        del fields["prompt"]
        if "seed" in fields:  # all servers accept 31 bits
            fields["seed"] = derived_seed(f"caption {name!a}", fields["seed"]) & 0x7FFFFFFF
        content = [{"type": "image_url", "image_url": {"url": image}}, text]
        return self.server.ask({"messages": [{"role": "user", "content": content}], **fields})


def _result(future: Future) -> Any:
    """Return a future's result. Raises Stopped if a stop is requested before it has one."""
    while not wait([future], STOP_CHECK_S).done:
        if signals.stop_requested():
            raise signals.Stopped
    return future.result()


def as_data_url(name: str, data: Optional[BinaryIO] = None, prompt: Optional[str] = None) -> str:
    """Return an image file as the data URL of a JPEG that has no metadata. Raises UserError.

    data: the file's content, if the file is not on disk.
    prompt: not used.
    """
    image = load_image(name, data)
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.BICUBIC)
    return _as_jpeg(image)


def _as_jpeg(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


GREY = _as_jpeg(Image.new("RGB", (224, 224), "grey"))


def loader(
    arguments: Request, changes: dict[str, Any]
) -> tuple[dict[str, Any], Callable[[], ServedModel]]:
    """Return the settings that identify a run, and a function that returns its model.

    changes: {key of the configuration: value} that the user has set.

    The server's address and key do not identify a run, since they change no caption, so that it can
    continue on another server. Raises UserError.
    """
    values = {"seed": Config.model_fields["seed"].default, "sample": False, **DEFAULTS, **changes}
    seed, sample, readers = map(values.pop, ("seed", "sample", "num_workers"))
    settings = {"prompt": arguments.prompt or PROMPT, "max_tokens": values.pop("max_length")}
    for key in values:
        if key not in FIELDS:
            raise UserError(f"{key} does not apply to a served model")
        if key in SAMPLING and not sample:
            raise UserError(f"{key} has no effect without sample=true")
    settings.update(values, **({"seed": seed} if sample else {"temperature": 0}))
    if arguments.num_return > 1:
        if not sample:
            raise UserError("--num_return needs sample=true: else all captions are the same")
        settings["n"] = arguments.num_return
    name, concurrency = arguments.checkpoint, arguments.concurrency or CONCURRENCY
    load = partial(ServedModel, name, arguments.url, settings, concurrency, readers)
    return {"checkpoint": name, **settings}, load
