"""Defines the interface of a captioner, and of the package that provides the captioner.

Shapes: B images; k captions per image; R = B * k captions, grouped by image; n tokens per caption,
including p tokens of the prompt; V tokens in the vocabulary; G x G positions of an attention map.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple, Optional, Protocol

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from decoding import DecodingSettings, Generated
from smile import ObjectiveOutput

# A batch of B preprocessed images: a float tensor (B, 3, S, S), or an object that the package's
# `join` returns. That object needs these methods of a tensor: __len__, __getitem__ with a slice or
# a list, to, pin_memory and is_floating_point. is_floating_point returns true if the images are
# already normalised.
Images = Any
Captions = list[list[str]]  # k captions of each of B images, without the prompt
Prompts = Optional[list[Optional[str]]]  # for each image a prompt, or None for the captioner's


class Tokenizer(Protocol):
    """Converts captions to token ids and back.

    - pad, end, unknown: ids of special tokens

    If the tokenizer has a start token, the ids that `encode_prompt` returns begin with it.
    """

    pad: int
    end: int
    unknown: int

    def __len__(self) -> int:
        """Return the size of the vocabulary, V."""

    def token(self, token_id: int) -> str:
        """Return the text of one id. It begins with ## if the token continues a word."""

    def encode(self, texts: list[str], max_length: int) -> Tensor:
        """Return ids, int64 (R, n) with n <= max_length, with `pad` after the end of a text."""

    def encode_prompt(self, prompt: str) -> Tensor:
        """Return the ids of the prompt, with which every caption begins, without an end token.

        The result is int64 (p,).
        """

    def decode(self, ids: Tensor) -> str:
        """Return the text of ids (n,), without special tokens."""


class Captioner(Protocol):
    """An `nn.Module` that captions images.

    Training, scoring, bulk captioning, the report and the demo page use only this interface.

    Tokens that generation excludes have probability 0 in `score_tokens` and `log_likelihoods`, too,
    unless a library generates the captions. Training captions are truncated to `max_tokens`. The
    objective is the configuration's `build_objective().with_tokens(tokenizer.pad, tokenizer.end)`.

    - prompt: the text with which every caption begins. It is neither scored nor part of the output.
      Empty if the package has PROMPT_IS_QUESTION
    - prompt_ids: the ids of the prompt, int64 (p,). `captioning.models.prompts` temporarily sets
      prompt_ids to (B, p), one prompt per image. The demo page temporarily sets prompt and
      prompt_ids
    - max_positions: the most tokens of a caption; None for no limit
    - has_unused_parameters: whether a training step may leave parameters without a gradient
    """

    tokenizer: Tokenizer
    prompt: str
    prompt_ids: Tensor
    max_positions: Optional[int]
    has_unused_parameters: bool

    def forward(
        self,
        image: Images,
        captions: Captions,
        prompts: Prompts = None,
    ) -> ObjectiveOutput:
        """Return the objective on k captions of each image. Encodes each image once if possible.

        prompts: not used if the package has PROMPT_IS_QUESTION. Raises ValueError if the lists
        of captions have different lengths.
        """

    def predictions(
        self,
        image: Images,
        captions: Captions,
        prompts: Prompts = None,
    ) -> tuple[Tensor, Tensor]:
        """Return teacher-forced logits (R, N, V) and labels (R, N) at N positions.

        A label is -100 where there is no label. captions, prompts: see `forward`.
        """

    def generate(self, image: Images, settings: DecodingSettings) -> list[str]:
        """Return the best caption of each image."""

    def generate_details(self, image: Images, settings: DecodingSettings) -> Generated:
        """Return captions of images, with their token ids and scores."""

    def encode(self, image: Images) -> Any:
        """Return the encoded images, such as a tensor (B, ...). Slicing selects images."""

    def encode_null(self, device: torch.device) -> Any:
        """Return the encoded null image (1, ...), which stands for "no image" in guidance and mmi.

        The null image is zero after normalisation: it has the mean colour in all pixels. With
        `drop_image`, it replaces random images in training. A captioner whose images are not
        tensors has to refuse `drop_image` and `rerank`; this method is then never called.
        """

    def generate_from(self, encoded: Any, settings: DecodingSettings) -> Generated:
        """Do what `generate_details` does, for images that are already encoded.

        Raises SettingsError for settings that the captioner does not support.
        """

    def score_tokens(self, encoded: Any, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """Score a generated caption by teacher forcing. ids: (n,). encoded: one image (1, ...).

        Returns the logits (n - p, V) that predict each id after the prompt, and attention maps
        (n - p, G * G) whose rows sum to 1, or None if the captioner gives no maps.
        """

    def log_likelihoods(self, encoded: Any, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log-probability of each token of captions, with gradient.

        ids: int64 (B, k, n), in the format of `generate_from`. If they come from `generate_from`,
        the caller has to clone them, because autograd does not accept inference tensors.
        temperature: divides the logits; the distribution is not truncated (no top-p, no top-k). The
        result is float32 (B, k, n - p), and 0 after a caption's end.
        """

    def for_inference(self, dtype: torch.dtype, compiled: bool) -> nn.Module:
        """Return the captioner or a copy, in evaluation mode, for use without gradients.

        dtype: the precision to compute in, except where that would be inaccurate. It is torch.int8
        only if the package's `check_device` accepts int8. compiled: whether to use torch.compile.
        """

    def compile_parts(self) -> None:
        """Compile the modules that torch.compile makes faster in training."""

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        """Return groups of parameters to train, each with its learning rate.

        A learning rate of None stands for the run's `init_lr`.
        """

    def shards(self) -> list[nn.Module]:
        """Return the modules whose weights FSDP gathers one at a time.

        The modules are not nested, and a shared weight is in at most one of the modules.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Called before each epoch of training. epoch: counted from 0."""

    def saved_beside_weights(self) -> dict[str, Any]:
        """Return entries that a checkpoint needs besides the state dict; {} if none.

        When a captioner is built from the checkpoint, `build` finds these entries in
        `BuildContext.content`.
        """


class BuildContext(NamedTuple):
    """What `build` needs besides the configuration.

    - content: the content of the checkpoint whose weights the caller loads after `build`; {} for
      random weights
    - name: the checkpoint's name, for messages
    - captions: returns the preprocessed captions of the training split
    - word_pieces: returns BERT's tokeniser with the given name
    - mean, std: the values for normalising images, one per channel
    """

    content: Mapping[str, Any]
    name: str
    captions: Callable[[], Iterable[str]]
    word_pieces: Callable[[str], Tokenizer]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class CaptionerPackage(Protocol):
    """What a module that `captioning.captioners.registry` names has to define.

    The functions raise ValueError for mistakes of the user.

    Keys: the package's configuration keys, each with its role (see `captioning.config.keys`). A
    key's name must be unique among all keys, so that it should begin with the package's name.

    PROMPT_IS_QUESTION: whether the prompt is an input of the model, like the image. If false, the
    prompt is the beginning of a caption.

    A package that supports LoRA also defines:

    - LORA_BASE: the key that names the frozen weights. If it is not `pretrained`, `build` loads
      them when there is no content
    - LORA_MODULE: the name of the captioner's submodule that gets the adapter; "" for the captioner
    - LORA_EXCLUDED: names of layers in this module that get no adapter
    """

    Keys: type[BaseModel]
    PROMPT_IS_QUESTION: bool

    def build(self, config: Any, context: BuildContext) -> Captioner:
        """Return the captioner of a configuration, with random weights and without LoRA."""

    def build_tokenizer(self, config: Any, context: BuildContext) -> Tokenizer:
        """Return a tokenizer that converts captions as the one in `build` does."""

    def origin(self, config: Any) -> str:
        """Return where the weights of `build` come from, to complete the line "no checkpoint: "."""

    def title(self, config: Any) -> str:
        """Return the captioner's part of a run's title, which precedes the objective; may be ""."""

    def check_device(self, config: Any, device: torch.device) -> None:
        """Raise ValueError for a precision or option that the device does not support."""

    def preprocessing(self, config: Any) -> Optional[tuple[Callable, ...]]:
        """Return the functions (evaluation, training, join); None for BLIP's functions.

        `join` may be left out. For the functions, see `captioning.data.Preprocessing`; but
        `training` always gets an RGB image. With PROMPT_IS_QUESTION, `evaluation` and `training`
        take the image's prompt, or None, as a second argument. They raise ValueError for an image
        that the captioner does not support.
        """
