"""Captions images with a model on an OpenAI-compatible server, such as vLLM or llama.cpp."""

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
from typing import Any, BinaryIO, Optional

from PIL import Image, ImageOps

from captioning.bulk.model import CaptionerLoader, Captions, line_of
from captioning.bulk.reading import Batch
from captioning.bulk.request import Request
from captioning.bulk.shards import OutputLine
from captioning.config import Config
from captioning.data.image import decode, open_image
from captioning.data.randomness import derived_seed
from captioning.files.chat import ChatServer, Reply, RequestFailed
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

KEY = "CAPTION_API_KEY"  # environment variable with the server's API key
PROMPT = "Describe this image in one sentence."
STOP_CHECK_S = 2  # seconds between two checks of stop_requested
AHEAD = 4  # prefetch: request this many images per concurrent request in advance

MAX_SIDE = 1344  # pixels; larger images are shrunk
SENT_UNCHANGED = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp"}  # {Pillow's format: MIME subtype}
EIGHT_BITS = {"1", "L", "P", "RGB", "RGBA"}  # Pillow modes that all servers decode alike
QUALITY = 95  # JPEG quality of images that are re-encoded

DEFAULT_CONCURRENCY = 32
DEFAULT_MAX_TOKENS = 256
READERS = 2  # default number of worker processes that read images
# FIELDS: flags that are sent as fields of the request; `max_length` is sent as max_tokens. top_k,
# min_p and repetition_penalty are extensions of vLLM and SGLang.
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
FIELDS = ("max_length", *SAMPLING, "repetition_penalty")
OWN_FLAGS = ("url", "prompt", "concurrency")  # flags that only apply to a server
# {flag that does not apply to a server: its default}
NOT_APPLICABLE = {"config": None, "device": "auto", "precision": None}


@dataclass(frozen=True)
class ChatPrompt:
    """Builds the request for each image.

    name: the model's name. prompt: the text sent with each image. fields: further fields of the
    request's JSON body. num_return: captions per image. seed: the sampling seed of the run, from
    which each image's seed is derived; None without sampling.
    """

    name: str
    prompt: str
    fields: dict[str, Any]
    num_return: int
    seed: Optional[int]

    def body(self, image: str, name: str, prompt: Optional[str] = None) -> dict[str, Any]:
        """Return the JSON body of the request for one image.

        image: a data URL. name: the image's name, from which its seed is derived. prompt: replaces
        the prompt of the run for this image, if given.
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
    """A captioner with the interface of `CheckpointModel` that sends images to a server.

    url: the server's address. concurrency: requests at once. batch_size: images per batch.
    num_workers: processes that read images. To check the server, the constructor requests a
    caption of a grey image. The constructor raises UserError if the server does not answer,
    refuses the request, or returns another number of captions than requested.
    """

    collate = list

    def __init__(
        self, prompt: ChatPrompt, url: str, concurrency: int, batch_size: int, num_workers: int
    ):
        self.server = ChatServer(url, "--url", KEY)
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
        models = self._result(self.pool.submit(self.server.list_models))
        try:
            contents = self._result(self.pool.submit(self._send, GREY))
        except RequestFailed as error:
            others = ", ".join(models[:5])
            unknown = models and prompt.name not in models
            raise UserError(f"{error} (its models: {others})" if unknown else str(error)) from None
        if len(contents) != prompt.num_return:
            few = f"got {len(contents)} captions instead of {prompt.num_return}"
            raise UserError(f"{self.server.url}: {few}; use --num_return 1")

    def prefetch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Submit the requests of the batches in advance; yield the batches with futures as `image`.

        `image` becomes a list of one future per readable image. Keeps enough requests in flight
        that a slow request does not block others.
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

    def lines(self, batch: Batch, offset: int, request: Request) -> list[OutputLine]:
        """Return one output line for each entry of a batch from `prefetch`.

        offset: not used. request: the user's call of bulk captioning, not a request to the server.
        Raises UserError if the server fails, and Stopped after a signal.
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

    def _result(self, future: Future) -> Any:
        """Wait for a future and return its result.

        Raises Stopped if a stop is requested before the server has answered.
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
        """Request the captions of one image. Called in a thread of the pool.

        Raises _ImageError if the cause is the image, and UserError if the cause is the server.
        """
        try:
            replies = self._send(image, name, prompt)
        except RequestFailed as error:
            self._send(GREY)  # if this fails, too, the cause is the server, not the image
            if not error.is_temporary:  # the server refused the request for this image
                raise _ImageError(str(error)) from None
            try:  # the server was busy or broken, but answers again
                replies = self._send(image, name, prompt)
            except RequestFailed as second:
                raise _ImageError(str(second)) from None
        captions = [{"caption": " ".join(reply.text.split())} for reply in replies]
        for caption, reply in zip(captions, replies):
            if not caption["caption"]:
                lacking = "only thoughts" if reply.has_thoughts else "no caption"
                advice = ": raise --max_length" if reply.is_cut else ""
                raise _ImageError(f"the answer has {lacking}{advice}")
            if any(each.is_cut for each in replies):
                caption["cut"] = reply.is_cut
        if len(captions) != self.prompt.num_return:
            wanted = self.prompt.num_return
            raise _ImageError(f"the answer has {len(captions)} captions instead of {wanted}")
        return captions

    def _send(self, image: str, name: str = "", prompt: Optional[str] = None) -> list[Reply]:
        return self.server.ask(self.prompt.body(image, name, prompt), self.cancelled)

    def _cancel(self) -> None:
        self.cancelled.set()
        self.pool.shutdown(wait=False)


class _ImageError(Exception):
    """Says why an image has no caption although the server works."""


def as_data_url(path: str, data: Optional[BinaryIO] = None, prompt: Optional[str] = None) -> str:
    """Return an image file as a data URL.

    path: the image's name. data: the file's content, if the file is not on disk. prompt: ignored;
    `ShardImages` passes it because some captioners take a prompt as input.

    A JPEG, PNG or WEBP with one frame, at most 8 bits per channel and sides up to MAX_SIDE is
    sent unchanged. Any other image is rotated as its EXIF data says, shrunk to MAX_SIDE and sent
    as a JPEG. Raises UserError if the image cannot be read.
    """
    with open_image(path, data) as image:
        kind = SENT_UNCHANGED.get(image.format)
        animated = getattr(image, "is_animated", False)
        small = max(image.size) <= MAX_SIDE
        unchanged = kind and small and not animated and image.mode in EIGHT_BITS
        pixels = decode(image, path)  # always, so that an incomplete image is refused
        if unchanged:
            if data is None:
                return _data_url(kind, Path(path).read_bytes())
            data.seek(0)
            return _data_url(kind, data.read())
    with contextlib.suppress(Exception):  # damaged EXIF data does not prevent captioning
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


def check_flags(arguments: argparse.Namespace, decoding: Iterable[str]) -> None:
    """Raise UserError if the flags do not fit the backend. Called for every backend.

    decoding: the names of all decoding flags.
    """
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
    ChatServer(arguments.url, "--url", KEY)


def model_loader(arguments: argparse.Namespace) -> CaptionerLoader:
    """Return the loader of a `ServedModel`.

    The identity leaves out the server's address and key, since neither changes a caption, so that
    a run can continue on another server. Raises UserError.
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
    return CaptionerLoader({**settings, **fields}, load)
