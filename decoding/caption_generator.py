"""Provides the base class of captioners that generate captions by a step function."""

from abc import abstractmethod
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from decoding.decode import generate_captions
from decoding.guided import encode_noisy, second_stream
from decoding.interface import DecodingSettings, Generated, Step
from decoding.null_image import NullImage

# The prompts of B images. None, for one image or for all, means the captioner's own prompt.
Prompts = Optional[list[Optional[str]]]


class TrainingTokens(NamedTuple):
    """R captions, each after its prompt.

    tokens, attention_mask, labels: int64 (R, n). Prompts and padding have the label
    `ignore_index`. prompt_length: the number of tokens of the shortest prompt.
    """

    tokens: Tensor
    attention_mask: Tensor
    labels: Tensor
    prompt_length: int


def training_tokens(
    captioner: Any, captions: list[list[str]], prompts: Prompts, ignore_index: int
) -> TrainingTokens:
    """Return the tokens of B lists of captions, on the CPU.

    captioner: a `CaptionGenerator` with a `prompt`, its `prompt_ids`, a `tokenizer` and
    `max_tokens`.
    """
    texts = []
    prompt_lengths = []
    for group, prompt in zip(captions, prompts or [None] * len(captions)):
        if prompt is None:
            prefix = captioner.prompt
            length = captioner.prompt_ids.size(-1)
        else:
            prefix = f"{prompt.strip()} "
            length = len(captioner.tokenizer.encode_prompt(prompt))
        texts += [prefix + caption for caption in group]
        prompt_lengths += [length] * len(group)
    tokens, mask = captioner.tokenizer.encode(texts, captioner.max_tokens)
    caption_starts = torch.tensor(prompt_lengths)
    if captioner.shift:
        tokens = captioner.shift.apply(tokens, caption_starts)
    is_prompt = torch.arange(tokens.size(1)) < caption_starts.unsqueeze(1)
    labels = tokens.masked_fill((mask == 0) | is_prompt, ignore_index)
    return TrainingTokens(tokens, mask, labels, min(prompt_lengths))


class CaptionGenerator(nn.Module):
    """The methods of `captioning.captioners.interface.Captioner` that captioners have in common.

    A subclass defines the abstract methods, and the other methods of that protocol. null_image: see
    `decoding.null_image`. inference_context: returns a context manager in which captions are
    generated, such as one that turns autocast off. A subclass may also use the context manager
    elsewhere, such as in `encode`. shift: an object that changes the first token of training
    captions, see `BLIP.tokenizer.FirstTokenShift`, or None.
    """

    null_image: NullImage
    inference_context: Any = nullcontext
    shift: Any = None
    min_batch_size = 1
    has_unused_parameters = False

    @abstractmethod
    def step_function(
        self, encoded: Tensor, settings: DecodingSettings, other: Optional[Tensor]
    ) -> Step:
        """Return the step function for encoded images (B, P, width).

        other: the encoded images of the second stream of guidance or contrast, see
        `decoding.guided.second_stream`; None for plain decoding.
        """

    @abstractmethod
    def caption_text(self, ids: Tensor) -> str:
        """Return the text of a caption without the prompt. ids: (L,), with the prompt."""

    @torch.inference_mode()
    def generate_details(self, image: Tensor, settings: DecodingSettings) -> Generated:
        """Return captions of images (B, 3, S, S) with their token ids and scores."""
        encoded = self.encode(image)
        return self.generate_from(encoded, settings, encode_noisy(self, image, settings))

    @torch.inference_mode()
    def generate_from(
        self, encoded: Tensor, settings: DecodingSettings, other: Optional[Tensor] = None
    ) -> Generated:
        """Return captions of encoded images (B, P, width).

        other: the result of `decoding.guided.encode_noisy`: the same images with noise, encoded.
        None if `contrastive_alpha` is 0.
        """
        other = second_stream(self, encoded, settings, other)
        with self.inference_context():
            return generate_captions(
                self.step_function(encoded, settings, other),
                self.prompt_ids,
                encoded,
                self.tokenizer,
                settings,
                text=self.caption_text,
                log_likelihoods=partial(self.log_likelihoods, encoded),
            )

    def generate(self, image: Tensor, settings: DecodingSettings) -> list[str]:
        """Return the best caption of each image (B, 3, S, S)."""
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def encode_null(self, encoded: Tensor) -> Tensor:
        return self.null_image.encode_like(self.encode, encoded)

    def for_inference(
        self, dtype: torch.dtype = torch.float32, compiled: bool = False
    ) -> nn.Module:
        """Return this captioner in evaluation mode. The caller's autocast sets the precision."""
        return self.eval()

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        return [([p for p in self.parameters() if p.requires_grad], None)]

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing. A subclass may change something between epochs."""

    def saved_beside_weights(self) -> dict[str, Any]:
        return {}
