"""Captions from a model on an OpenAI-compatible server: vLLM, SGLang, llama.cpp."""

import argparse
import base64
import contextlib
import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, Callable, Optional

from PIL import Image, ImageOps

from captioning.bulk.model import Captions, line_of
from captioning.bulk.reading import Batch
from captioning.bulk.request import Request
from captioning.bulk.shards import Line, Settings
from captioning.config import Config
from captioning.data.image import decode, open_image
from captioning.data.randomness import derived_seed
from captioning.files.chat import ChatServer, NoAnswer
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

KEY = "CAPTION_API_KEY"  # environment variable
PROMPT = "Describe this image in one sentence."
TIMEOUT_S = 300  # until the next byte; long, because a busy server queues requests
STOP_CHECK_S = 2  # between two checks of stop_requested
AHEAD = 4  # images requested ahead, as a multiple of the concurrency

MAX_SIDE = 1344  # pixels; larger images are shrunk
SENT_UNCHANGED = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp"}
EIGHT_BITS = {"1", "L", "P", "RGB", "RGBA"}  # modes that all servers decode alike
QUALITY = 95  # of the JPEGs written here

DEFAULT_CONCURRENCY = 32
DEFAULT_MAX_TOKENS = 256
READERS = 2
# Flags that are fields of the request, `max_length` as max_tokens. The last two of SAMPLING and
# repetition_penalty are extensions of vLLM and SGLang.
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
FIELDS = ("max_length", *SAMPLING, "repetition_penalty")
OWN_FLAGS = ("url", "prompt", "concurrency")
# Flags that do not apply to a server, with their defaults.
NOT_APPLICABLE = {"config": None, "device": "auto", "precision": None}


@dataclass(frozen=True)
class ChatPrompt:
    """Builds the request for each image.

    name: the model's name. fields: further fields of the body. seed: the seed of sampling, from
    which each image's seed is derived; None without sampling.
    """

    name: str
    prompt: str
    fields: dict[str, Any]
    num_return: int
    seed: Optional[int]

    def body(self, image: str, name: str, prompt: Optional[str] = None) -> dict[str, Any]:
        """Return the body of the request. image: a data URL. name: the image's name, for its seed.

        prompt: the image's own, if it has one.
        """
        content = [
            {"type": "image_url", "image_url": {"url": image}},
            {"type": "text", "text": prompt or self.prompt},
        ]
        body = {
            "model": self.name,
            "messages": [{"role": "user", "content": content}],
            **self.fields,
        }
        if self.num_return > 1:
            body["n"] = self.num_return
        if self.seed is not None:  # all servers accept 31 bits
            body["seed"] = derived_seed(f"caption {name!a}", self.seed) & 0x7FFFFFFF
        return body


class ServedModel:
    """A captioner with the interface of `CheckpointModel`. concurrency: requests at once.

    To check the server, the constructor requests a caption of a grey image. It raises UserError if
    the server does not answer or refuses the request.
    """

    join = list

    def __init__(
        self, prompt: ChatPrompt, url: str, concurrency: int, batch_size: int, num_workers: int
    ):
        self.server = server_at(url)
        self.prompt, self.batch_size, self.num_workers = prompt, batch_size, num_workers
        self.read = as_data_url
        settings = {"prompt": prompt.prompt, **prompt.fields}
        settings["num_return_sequences"] = prompt.num_return
        if prompt.seed is not None:
            settings = {"do_sample": True, "seed": prompt.seed, **settings}
        self.origin = {"checkpoint": prompt.name, "settings": settings}
        self.report = f"captions of {prompt.name} at {self.server.url}, {concurrency} at once"
        self.concurrency, self.cancelled = concurrency, Event()
        self.pool = ThreadPoolExecutor(concurrency)
        models = self.server.check()
        try:
            contents = self._send(GREY)
        except NoAnswer as error:
            others = ", ".join(models[:5])
            unknown = models and prompt.name not in models
            raise UserError(f"{error} (its models: {others})" if unknown else str(error)) from None
        if len(contents) != prompt.num_return:
            few = f"got {len(contents)} captions instead of {prompt.num_return}"
            raise UserError(f"{self.server.url}: {few}; use --num_return 1")

    def prefetch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches with futures of captions in place of images.

        Keeps enough requests in flight that a slow request does not block others.
        """
        waiting, ahead = deque(), AHEAD * self.concurrency
        try:
            for batch in batches:
                waiting.append(self._submit(batch))
                while sum(len(other.image) for other in islice(waiting, 1, None)) >= ahead:
                    yield waiting.popleft()
            yield from waiting
        except BaseException:  # without this, the exit would wait for all requests
            self._cancel()
            raise

    def lines(self, batch: Batch, offset: int, request: Request) -> list[Line]:
        """Return one output line for each entry of a batch from `prefetch`.

        offset: not used. request: the user's call of bulk captioning, not a request to the server.
        Raises UserError, Stopped.
        """
        futures = iter(batch.image)
        lines = []
        for entry in batch.entries:
            captions: Captions = []
            if "error" not in entry:
                try:
                    captions = self._result(next(futures))
                except _ImageError as error:
                    entry = {**entry, "error": f"{entry['image']}: {error}"}
                except UserError as error:
                    self._cancel()
                    raise UserError(f"{error}; run the same command again to continue") from None
            lines.append(line_of(entry, captions, request, self.origin))
        return lines

    def _result(self, future: Future) -> Captions:
        """Return the captions of a request.

        Raises Stopped if the program has to stop before they come.
        """
        while not wait([future], STOP_CHECK_S).done:
            if signals.stop_requested():
                self._cancel()
                raise signals.Stopped
        return future.result()

    def _submit(self, batch: Batch) -> Batch:
        entries = [entry for entry in batch.entries if "error" not in entry]
        futures = [
            self.pool.submit(self._captions, entry["image"], image, entry.get("prompt"))
            for entry, image in zip(entries, batch.image or ())
        ]
        return batch._replace(image=futures)

    def _captions(self, name: str, image: str, prompt: Optional[str]) -> Captions:
        """Request captions of an image.

        Raises _ImageError for an error of the image, UserError for an error of the server.
        """
        if self.cancelled.is_set():
            raise UserError("cancelled")
        try:
            contents = self._send(image, name, prompt)
        except NoAnswer as error:
            if self.cancelled.is_set():
                raise
            self._send(GREY)  # if this fails, too, the cause is the server, not the image
            if error.code is not None:
                raise _ImageError(str(error)) from None
            try:  # the server was busy or broken
                contents = self._send(image, name, prompt)
            except NoAnswer as second:
                raise _ImageError(str(second)) from None
        # JSON may contain half of a surrogate pair, which cannot be written to a file.
        texts = (text.encode("utf-8", "replace").decode() if text else "" for text in contents)
        captions = [" ".join(text.split()) for text in texts]
        if not all(captions):
            raise _ImageError("the answer has no caption")
        if len(captions) != self.prompt.num_return:
            wanted = self.prompt.num_return
            raise _ImageError(f"the answer has {len(captions)} captions instead of {wanted}")
        return [{"caption": caption} for caption in captions]

    def _send(
        self, image: str, name: str = "", prompt: Optional[str] = None
    ) -> list[Optional[str]]:
        return self.server.ask(self.prompt.body(image, name, prompt), self.cancelled)

    def _cancel(self) -> None:
        self.cancelled.set()
        self.pool.shutdown(wait=False)


class _ImageError(Exception):
    """Why an image has no caption although the server works."""


def server_at(url: str) -> ChatServer:
    """Return the server at a URL. A URL without a path gets the path /v1. Raises UserError."""
    server = ChatServer(url, "--url", KEY, TIMEOUT_S)
    if server.url.count("/") == 2:
        server.url += "/v1"
    return server


def as_data_url(path: str, data: Optional[BinaryIO] = None, prompt: Optional[str] = None) -> str:
    """Return the data URL of an image file, given its path and, if it is not on disk, its content.

    prompt: ignored. `ShardImages` passes it, for captioners whose input includes a prompt.

    A JPEG, PNG or WEBP with one frame, 8 bits per channel and sides up to MAX_SIDE is sent
    unchanged. Other images are sent upright as a JPEG of at most this size. Raises UserError.
    """
    with open_image(path, data) as image:
        kind = SENT_UNCHANGED.get(image.format)
        animated = getattr(image, "is_animated", False)
        small = max(image.size) <= MAX_SIDE
        unchanged = kind and small and not animated and image.mode in EIGHT_BITS
        pixels = decode(image, path)  # also to refuse an incomplete image that is sent unchanged
        if unchanged:
            if data is None:
                return _data_url(kind, Path(path).read_bytes())
            data.seek(0)
            return _data_url(kind, data.read())
    with contextlib.suppress(Exception):  # an image with damaged EXIF is still captioned
        pixels = ImageOps.exif_transpose(pixels)
    pixels.thumbnail((MAX_SIDE, MAX_SIDE), Image.BICUBIC)
    return _as_jpeg(pixels)


def _as_jpeg(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return _data_url("jpeg", file.getvalue())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


GREY = _as_jpeg(Image.new("RGB", (224, 224), (128, 128, 128)))


def check(arguments: argparse.Namespace, decoding: Iterable[str]) -> None:
    """Raise UserError for flags that cannot be combined. decoding: the decoding flags."""
    if arguments.backend == "checkpoint":
        for name in OWN_FLAGS:
            if getattr(arguments, name) is not None:
                raise UserError(f"--{name} is for --backend openai")
        return
    if not arguments.url:
        raise UserError("--backend openai needs --url, such as http://localhost:8000/v1")
    unset = {**NOT_APPLICABLE, **{name: None for name in decoding if name not in FIELDS}}
    for name, value in unset.items():
        if getattr(arguments, name) != value:
            raise UserError(f"--{name} does not apply to --backend openai")
    if not arguments.do_sample:
        for name in SAMPLING:
            if getattr(arguments, name) is not None:
                raise UserError(f"--{name} needs --do_sample")
        if arguments.num_return > 1:
            raise UserError(
                f"--num_return {arguments.num_return} needs --do_sample: without sampling, all "
                "captions of an image are the same"
            )
    server_at(arguments.url)


def loader(arguments: argparse.Namespace) -> tuple[Settings, Callable[[], ServedModel]]:
    """Return the settings that identify the run, and a function that builds the captioner.

    The server's address and key do not identify the run: they change no caption. Raises UserError.
    """
    values = {name: getattr(arguments, name) for name in FIELDS}
    values = {name: value for name, value in values.items() if value is not None}
    try:
        DecodingSettings(sample=True, min_length=0, **values)
    except ValueError as error:
        raise UserError(f"--{error}") from error
    if values.get("top_k") == 0:
        del values["top_k"]  # 0 switches top-k off; leaving the field out does the same
    fields = {"max_tokens": values.pop("max_length", DEFAULT_MAX_TOKENS), **values}
    seed = None
    if arguments.do_sample:
        seed = Config.model_fields["seed"].default if arguments.seed is None else arguments.seed
    else:
        fields["temperature"] = 0
    text, name = arguments.prompt or PROMPT, arguments.checkpoint
    settings = {"backend": arguments.backend, "checkpoint": name, "prompt": text, "seed": seed}
    concurrency = arguments.concurrency or DEFAULT_CONCURRENCY
    readers = READERS if arguments.num_workers is None else arguments.num_workers
    prompt = ChatPrompt(name, text, fields, arguments.num_return, seed)
    batch_size = arguments.batch_size or concurrency
    load = partial(ServedModel, prompt, arguments.url, concurrency, batch_size, readers)
    return {**settings, **fields}, load
