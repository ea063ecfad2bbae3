"""A model that is served elsewhere: by vLLM, SGLang, llama.cpp, by any OpenAI-compatible server."""

import base64
import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass
from threading import Event
from typing import Any, BinaryIO, Optional

from PIL import Image

from captioning.bulk.model import line_of
from captioning.bulk.reading import Batch
from captioning.bulk.request import Request
from captioning.data.image import decode, open_image
from captioning.data.randomness import derived_seed
from captioning.files.chat import ChatServer, NoAnswer
from captioning.runtime import signals
from captioning.runtime.errors import UserError

KEY = "CAPTION_API_KEY"  # of the environment
PROMPT = "Describe this image in one sentence."
TIMEOUT_S = 300  # without a byte: a busy server lets requests wait
PATIENCE_S = 2  # of a program that was asked to stop, with a server
AHEAD = 4  # times the requests at once: so many images are asked for before they are waited for

LONGEST_SIDE = 1344  # pixels; a larger image is made smaller
SENT_AS_THEY_ARE = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp"}
EIGHT_BITS = {"1", "L", "P", "RGB", "RGBA"}  # modes that every server reads alike
QUALITY = 95  # of a JPEG that is made here
ORIENTATION = 0x0112  # in EXIF


@dataclass(frozen=True)
class Question:
    """What is asked of each image. fields: of the interface, as they are sent. seed: of sampling,
    from which each image gets its own; None where the captions are not sampled."""

    name: str
    prompt: str
    fields: dict[str, Any]
    num_return: int
    seed: Optional[int]

    def body(self, image: str, name: str) -> dict[str, Any]:
        """The request for an image, a data URL, of that name."""
        content = [
            {"type": "image_url", "image_url": {"url": image}},
            {"type": "text", "text": self.prompt},
        ]
        body = {
            "model": self.name,
            "messages": [{"role": "user", "content": content}],
            **self.fields,
        }
        if self.num_return > 1:
            body["n"] = self.num_return
        if self.seed is not None:  # of 31 bits, which every server takes
            body["seed"] = derived_seed(f"caption {name!a}", self.seed) & 0x7FFFFFFF
        return body


class Served:
    """What bulk captioning asks of a captioner (`Captioning`), of one elsewhere.

    concurrency: requests at once. Making one asks for a caption of a grey image: raises UserError
    where nobody answers, or the answer is no.
    """

    join = list

    def __init__(
        self, question: Question, url: str, concurrency: int, batch_size: int, num_workers: int
    ):
        self.server = server_at(url)
        self.question, self.batch_size, self.num_workers = question, batch_size, num_workers
        self.read = as_data_url
        told = {"prompt": question.prompt, **question.fields}
        told["num_return_sequences"] = question.num_return
        if question.seed is not None:
            told = {"do_sample": True, "seed": question.seed, **told}
        self.origin = {"checkpoint": question.name, "settings": told}
        self.report = f"captions of {question.name} at {self.server.url}, {concurrency} at once"
        self.concurrency, self.given_up = concurrency, Event()
        self.pool = ThreadPoolExecutor(concurrency)
        self._begin()

    def ahead(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, with requests for captions in the place of images, enough of them at any
        time that one that takes long keeps no others waiting."""
        waiting: deque[Batch] = deque()
        try:
            for batch in batches:
                waiting.append(self._asked_for(batch))
                while sum(map(_images, waiting)) - _images(waiting[0]) >= AHEAD * self.concurrency:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        except BaseException:  # what is asked for would be waited for at the exit
            self._give_up()
            raise

    def lines(self, batch: Batch, after: int, job: Request) -> list[dict[str, Any]]:
        """A line for each entry of a batch that `ahead` gave. Raises UserError."""
        drawn = iter(batch.image or ())
        lines = []
        for entry in batch.entries:
            captions = None
            if "error" not in entry:
                try:
                    captions = self._answer(next(drawn))
                except _Failed as error:
                    entry = {**entry, "error": f"{entry['image']}: {error}"}
                except UserError as error:
                    self._give_up()
                    raise UserError(f"{error}; the same command goes on from here") from None
            lines.append(line_of(entry, captions, None, job, self.origin))
        return lines

    def _answer(self, asked: Future) -> list[str]:
        """Raises Stopped where the program is asked to stop, and the server takes its time."""
        while True:
            try:
                return asked.result(timeout=PATIENCE_S)
            except TimeoutError:
                if signals.stop_requested():
                    self._give_up()
                    raise signals.Stopped from None

    def _asked_for(self, batch: Batch) -> Batch:
        if batch.image is None:
            return batch
        names = [entry["image"] for entry in batch.entries if "error" not in entry]
        asked: list[Future] = [
            self.pool.submit(self._captions, name, image) for name, image in zip(names, batch.image)
        ]
        return batch._replace(image=asked)

    def _captions(self, name: str, image: str) -> list[str]:
        """Raises _Failed where the image is at fault, UserError where the server is."""
        if self.given_up.is_set():
            raise UserError("given up")
        try:
            contents = self._ask(image, name)
        except NoAnswer as error:
            contents = self._ask_again(image, name, error)
        captions = list(map(_on_one_line, contents))
        if len(captions) != self.question.num_return or not all(captions):
            raise _Failed("the answer has no caption" if not all(captions) else _few(captions))
        return captions

    def _ask_again(self, image: str, name: str, refusal: NoAnswer) -> list[Optional[str]]:
        """After a grey image: if the server refuses that one, too, the fault is its own."""
        if not self.given_up.is_set():
            self._ask(GREY)
            if refusal.code is None:  # it was busy, or broken
                try:
                    return self._ask(image, name)
                except NoAnswer as error:
                    refusal = error
        raise _Failed(str(refusal)) from None

    def _ask(self, image: str, name: str = "") -> list[Optional[str]]:
        return self.server.ask(self.question.body(image, name), self.given_up)

    def _begin(self) -> None:
        models = self.server.check()
        try:
            contents = self._ask(GREY)
        except NoAnswer as error:
            others = [other for other in models if other != self.question.name]
            known = models and self.question.name not in models
            hint = f" (it has {', '.join(others[:5])})" if known else ""
            raise UserError(f"{error}{hint}") from None
        if len(contents) != self.question.num_return:
            raise UserError(f"{self.server.url}: {_few(contents)}: use --num_return 1")

    def _give_up(self) -> None:
        self.given_up.set()
        self.pool.shutdown(wait=False)


class _Failed(Exception):
    """Why an image has no caption, though the server is well."""


def server_at(url: str) -> ChatServer:
    """The server at an address, or at /v1 there where it has no path. Raises UserError."""
    server = ChatServer(url, "--url", KEY, TIMEOUT_S)
    if server.url.count("/") == 2:
        server.url += "/v1"
    return server


def as_data_url(path: str, data: Optional[BinaryIO] = None) -> str:
    """An image file as it is sent: its own bytes, if it is whole, a JPEG, PNG or WEBP of one frame
    with 8 bits a channel, and has no side above LONGEST_SIDE; else made a JPEG that is so.

    The EXIF orientation stays beside the pixels, in either case. Raises UserError.
    """
    with open_image(path, data) as image:
        kind = SENT_AS_THEY_ARE.get(image.format)
        moves = getattr(image, "is_animated", False)
        small = max(image.size) <= LONGEST_SIDE
        own = kind and small and not moves and image.mode in EIGHT_BITS
        orientation = None if own else _orientation(image)
        pixels = decode(image, path)
        if own:
            return _data_url(kind, _content(path, data))
    pixels.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.BICUBIC)
    return _as_jpeg(pixels, orientation)


def _content(path: str, data: Optional[BinaryIO]) -> bytes:
    if data is not None:
        data.seek(0)
        return data.read()
    with open(path, "rb") as file:
        return file.read()


def _orientation(image: Image.Image) -> Optional[int]:
    try:
        return image.getexif().get(ORIENTATION)
    except Exception:  # whatever damaged EXIF makes Pillow stumble over; the pixels are what counts
        return None


def _as_jpeg(image: Image.Image, orientation: Optional[int]) -> str:
    exif = Image.Exif()
    if isinstance(orientation, int):
        exif[ORIENTATION] = orientation
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY, exif=exif)
    return _data_url("jpeg", file.getvalue())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


GREY = _as_jpeg(Image.new("RGB", (224, 224), (128, 128, 128)), None)


def _images(batch: Batch) -> int:
    return 0 if batch.image is None else len(batch.image)


def _on_one_line(content: Optional[str]) -> str:
    """JSON may hold half of a character, which no file takes."""
    return " ".join((content or "").encode("utf-8", "replace").decode().split())


def _few(captions: list) -> str:
    return f"the answer has {len(captions)} captions"
