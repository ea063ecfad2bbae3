"""What the project asks of a captioner, and of the package that it comes from.

Shapes: B images, k captions of each, R = B * k rows in the images' order; n tokens of a caption, p
of them the prompt's; V words; G x G places that a captioner looks at.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from decoding import DecodingSettings, Generated
from smile import ObjectiveOutput


class Images(Protocol):
    """A batch of B images as the captioner's preprocessing makes them: float (B, 3, S, S), or what
    the package's own `join` returns, which has these of a tensor's methods.

    is_floating_point says that nothing has to be normalised.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: Union[slice, list[int]]) -> "Images": ...

    def to(self, device: torch.device, non_blocking: bool = False) -> "Images": ...

    def pin_memory(self) -> "Images": ...

    def record_stream(self, stream: torch.cuda.Stream) -> None: ...

    def is_floating_point(self) -> bool: ...


class Tokenizer(Protocol):
    """Captions to token ids and back. pad, end, unknown: ids of its special tokens. What begins a
    caption is the first of `encode_prompt`, if anything does."""

    pad: int
    end: int
    unknown: int

    def __len__(self) -> int:
        """V."""

    def token(self, token_id: int) -> str:
        """The text of one id; that of a piece which goes on with a word begins with ##."""

    def encode(self, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
        """int64 ids and mask (1 real, 0 padding), each (R, n) with n <= max_length."""

    def encode_prompt(self, prompt: str) -> Tensor:
        """int64 (p,): what every caption begins with, without an end."""

    def decode(self, ids: Tensor) -> str:
        """The text of ids (n,), without special tokens."""


class Captioner(Protocol):
    """An `nn.Module` from images to captions. Training, scoring, bulk captioning, the report and
    the page are written against this and nothing else.

    Padding, the beginning and unknown words are to be impossible in what is generated and reread,
    unless a library draws its captions. Training captions are to be cut to `max_tokens`, and the
    objective is to be the configuration's
    `build_objective().with_tokens(tokenizer.pad, tokenizer.end)`.

    prompt, prompt_ids: what every caption starts with, not scored and not in what is generated, and
    its ids, int64 (p,); both empty where the package ASKS. The page sets both for a while.
    max_positions: the tokens that a row can have, None for any number. min_batch_size: the images
    that a training step takes at least. has_unused_parameters: a step may leave some parameters
    without a gradient.
    """

    tokenizer: Tokenizer
    prompt: str
    prompt_ids: Tensor
    max_positions: Optional[int]
    min_batch_size: int
    has_unused_parameters: bool

    def forward(self, image: Images, captions: list[list[str]]) -> ObjectiveOutput:
        """The objective on k captions of each image, which is encoded once, if it can be.

        captions: B lists of k strings, without the prompt. Raises ValueError where their numbers
        differ.
        """

    def predictions(self, image: Images, captions: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Logits (R, N, V) and the labels (R, N) that they predict, -100 where there is none."""

    def generate(self, image: Images, settings: DecodingSettings) -> list[str]:
        """The best caption of each image."""

    def generate_details(self, image: Images, settings: DecodingSettings) -> Generated:
        """Captions of images, with their token ids and scores."""

    def encode(self, image: Images) -> Any:
        """What it makes of images before any word, such as a tensor (B, ...): a slice of it is that
        of the images."""

    def generate_from(self, encoded: Any, settings: DecodingSettings) -> Generated:
        """`generate_details` of images that are encoded."""

    def score_tokens(self, encoded: Any, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """What it thinks of each word of its own caption, ids (n,), of one image, (1, ...).

        Returns logits (n - p, V) before each id after the prompt and where it looks then, (n - p,
        G * G) in rows that sum to 1; None for a captioner that sees the image once.
        """

    def log_likelihoods(self, encoded: Any, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """The log-probability of each token of captions, (B, k, n - p), float32, with gradient.

        ids: (B, k, n), as `generate_from` samples them of these images at this temperature, the
        distribution left whole. 0 for what stands behind a caption's end.
        """

    def for_inference(self, dtype: torch.dtype, compiled: bool) -> nn.Module:
        """The captioner, or a copy, in evaluation mode: it computes in `dtype` where that does no
        harm, and need not learn; torch.int8 where `check_device` lets it pass. compiled: with
        torch.compile."""

    def compile_parts(self) -> None:
        """Compile what torch.compile speeds up in training."""

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        """Parameters to train, each with a learning rate of its own or None for the run's."""

    def shards(self) -> list[nn.Module]:
        """The parts whose weights FSDP gathers one at a time, for their forward and backward. None
        holds another; a weight that two modules share is in one of them, or in none."""

    def begin_epoch(self, epoch: int) -> None:
        """Told before each epoch of training, from 0 on."""

    def saved_beside_weights(self) -> dict[str, Any]:
        """What a checkpoint needs besides the state dict, by the key that it gets there; `build`
        finds it under that key in `BuildContext.content`, when a run goes on as well."""


class BuildContext(NamedTuple):
    """What a captioner is made from besides its configuration.

    content: of the checkpoint whose weights will replace all, None for made-up ones; with `lora`,
    the adapter's, or whole weights that `build` puts beside a new one. name: what
    messages call that checkpoint. captions: those of the training split, cleaned up, read when
    asked for. word_pieces: BERT's tokeniser of a name. mean, std: what images are normalised with.
    """

    content: Optional[Mapping[str, Any]]
    name: str
    captions: Callable[[], Iterable[str]]
    word_pieces: Callable[[str], Tokenizer]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class CaptionerPackage(Protocol):
    """What a module offers so that the registry can name it; a ValueError is the user's to mend.

    ASKS: the configuration's prompt is a question that it is asked beside the image, and no
    caption's beginning.

    Keys: the configuration keys that are its own, each with its role (`captioning.config.keys`).
    They are read beside all others, so their names are theirs alone: begin them with the package's.
    """

    Keys: type[BaseModel]
    ASKS: bool

    def build(self, config: Any, context: BuildContext) -> Captioner:
        """The captioner that a configuration describes, its weights made up."""

    def origin(self, config: Any) -> str:
        """Where the weights of `build` come from, to be read after "no checkpoint: "."""

    def title(self, config: Any) -> str:
        """What stands before the objective in names of runs; "" where nothing need."""

    def check_device(self, config: Any, device: torch.device) -> None:
        """Raise ValueError for what torch cannot compute there."""

    def preprocessing(self, config: Any) -> Optional[tuple[Callable, ...]]:
        """The functions of `captioning.data.Preprocessing`, of which `join` may be left out, None
        for BLIP's. `training` gets RGB images, too. For an image that they cannot take they raise
        ValueError."""
