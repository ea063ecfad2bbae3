"""The interface of a captioner, and of the package that provides it.

Shapes: B images, k captions per image, R = B * k rows in the images' order, n tokens per caption
including p tokens of the prompt, V tokens in the vocabulary, attention maps of G x G positions.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional, Protocol

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from decoding import DecodingSettings, Generated
from decoding.null_image import NullImage
from smile import ObjectiveOutput

# A batch of B preprocessed images: a float tensor (B, 3, S, S), or the result of the package's
# `join`, which has these methods of a tensor: __len__, __getitem__ with a slice or a list, to,
# pin_memory, record_stream, and is_floating_point, true if the images are normalised already.
Images = Any


class Tokenizer(Protocol):
    """Captions to token ids and back. pad, end, unknown: ids of special tokens. If there is a start
    token, `encode_prompt` begins with it."""

    pad: int
    end: int
    unknown: int

    def __len__(self) -> int:
        """Return the size of the vocabulary, V."""

    def token(self, token_id: int) -> str:
        """Return the text of one id; a piece that continues a word begins with ##."""

    def encode(self, texts: list[str], max_length: int) -> tuple[Tensor, Tensor]:
        """int64 ids and mask (1 real, 0 padding), each (R, n) with n <= max_length."""

    def encode_prompt(self, prompt: str) -> Tensor:
        """int64 (p,): the ids that every caption begins with, without an end token."""

    def decode(self, ids: Tensor) -> str:
        """Return the text of ids (n,), without special tokens."""


class Captioner(Protocol):
    """An `nn.Module` that captions images. Training, scoring, bulk captioning, the report and the
    page use only this interface.

    In generation and scoring, special tokens other than `end` must have probability 0, unless a
    library generates the captions. Training captions are truncated to `max_tokens`. The objective
    is the configuration's `build_objective().with_tokens(tokenizer.pad, tokenizer.end)`.

    prompt, prompt_ids: the beginning of every caption, neither scored nor part of the output, and
    its ids, int64 (p,); both empty if the package has PROMPT_IS_QUESTION. The page changes
    both temporarily; `captioning.models.prompts` sets prompt_ids (B, p), a row per image.
    max_positions: the maximum number of tokens of a row, None for no limit. min_batch_size: the
    smallest batch on which it can train. has_unused_parameters: whether a training step may leave
    parameters without a gradient.
    null_image: None for a captioner without one, whose package refuses `drop_image` and settings
    with two streams. `generate_from` raises SettingsError for settings that the captioner does not
    support.
    """

    tokenizer: Tokenizer
    prompt: str
    prompt_ids: Tensor
    max_positions: Optional[int]
    min_batch_size: int
    has_unused_parameters: bool
    null_image: Optional[NullImage]

    def forward(
        self,
        image: Images,
        captions: list[list[str]],
        dropped: Optional[Tensor] = None,
        prompts: Optional[list[Optional[str]]] = None,
    ) -> ObjectiveOutput:
        """Return the objective on k captions of each image, which is encoded once if possible.

        captions: B lists of k strings, without the prompt. dropped: bool (B,); true replaces the
        image by the null image. prompts: B strings, None for the captioner's own; never given if
        the package has PROMPT_IS_QUESTION. Raises ValueError if the lists' lengths differ.
        """

    def predictions(
        self,
        image: Images,
        captions: list[list[str]],
        prompts: Optional[list[Optional[str]]] = None,
    ) -> tuple[Tensor, Tensor]:
        """Logits (R, N, V) and labels (R, N) at N positions; -100 where there is no label."""

    def generate(self, image: Images, settings: DecodingSettings) -> list[str]:
        """Return the best caption of each image."""

    def generate_details(self, image: Images, settings: DecodingSettings) -> Generated:
        """Captions of images, with their token ids and scores."""

    def encode(self, image: Images) -> Any:
        """Return the encoded images, such as a tensor (B, ...). Slicing selects images."""

    def encode_null(self, encoded: Any) -> Any:
        """Return the encoded null image, expanded to the shape of `encoded`, encoded images."""

    def generate_from(
        self, encoded: Any, settings: DecodingSettings, other: Any = None
    ) -> Generated:
        """`generate_details` of encoded images. other: see `decoding.guided.second_stream`."""

    def score_tokens(self, encoded: Any, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """Teacher-forced scoring of a generated caption, ids (n,), of one encoded image (1, ...).

        Returns the logits (n - p, V) that predict each id after the prompt, and attention maps
        (n - p, G * G) whose rows sum to 1; None for a captioner without attention to the image.
        """

    def log_likelihoods(self, encoded: Any, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log-probability of each token of captions, with gradient.

        ids: (B, k, n), as `generate_from` samples them at this temperature without truncating the
        distribution; autograd needs a clone of these inference tensors. The result is float32
        (B, k, n - p), and 0 after a caption's end.
        """

    def for_inference(self, dtype: torch.dtype, compiled: bool) -> nn.Module:
        """Return the captioner or a copy, in evaluation mode, for use without gradients.

        It computes in `dtype` where precision allows; torch.int8 only where `check_device` accepts
        it. compiled: use torch.compile.
        """

    def compile_parts(self) -> None:
        """Compile the modules that torch.compile makes faster in training."""

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        """Groups of parameters to train, each with its learning rate or None for the run's."""

    def shards(self) -> list[nn.Module]:
        """Return the modules whose weights FSDP gathers one at a time.

        They are not nested, and a shared weight is in at most one of them.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Called before each epoch of training, from 0 on."""

    def saved_beside_weights(self) -> dict[str, Any]:
        """Entries that a checkpoint needs besides the state dict. `build` finds them in
        `BuildContext.content`, also when a run resumes."""


class BuildContext(NamedTuple):
    """What `build` needs besides the configuration.

    content: of the checkpoint that the caller loads after `build`; None for random weights. With
    `lora`, the content is an adapter's, or whole weights that `build` itself loads before it adds a
    new adapter. name: the checkpoint's name, for messages. captions: returns the preprocessed
    captions of the training split. word_pieces: returns BERT's tokeniser by name. mean, std: for
    normalising images.
    """

    content: Optional[Mapping[str, Any]]
    name: str
    captions: Callable[[], Iterable[str]]
    word_pieces: Callable[[str], Tokenizer]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class CaptionerPackage(Protocol):
    """The members of a module that the registry names. They raise ValueError for users' mistakes.

    PROMPT_IS_QUESTION: whether the prompt is an input of the model, not the beginning of a caption.

    Keys: its configuration keys, each with its role (`captioning.config.keys`). Their names must be
    unique among all keys: begin them with the package's name.
    """

    Keys: type[BaseModel]
    PROMPT_IS_QUESTION: bool

    def build(self, config: Any, context: BuildContext) -> Captioner:
        """Return the captioner of a configuration, with random weights.

        A package without LoRA raises ValueError if `config.lora` is set.
        """

    def origin(self, config: Any) -> str:
        """Where the weights of `build` come from: completes "no checkpoint: "."""

    def title(self, config: Any) -> str:
        """Return the captioner's part of a run's title, before the objective; may be ""."""

    def check_device(self, config: Any, device: torch.device) -> None:
        """Raise ValueError for a precision or option that the device does not support."""

    def preprocessing(self, config: Any) -> Optional[tuple[Callable, ...]]:
        """Return functions for `captioning.data.Preprocessing`, `join` optional; None for BLIP's.

        `training` gets RGB images, too. With PROMPT_IS_QUESTION both take an image's prompt, or
        None, as a second argument. They raise ValueError for an image that they cannot take.
        """
