"""The base class of captioners whose step function the package `decoding` turns into captions."""

from abc import abstractmethod
from contextlib import nullcontext
from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor, nn

from decoding.decode import generate_captions
from decoding.guided import encode_noisy, second_stream
from decoding.interface import DecodingSettings, Generated, Step
from decoding.null_image import NullImage


def with_prompts(
    captioner: Any, captions: list[list[str]], prompts: Optional[list[Optional[str]]]
) -> tuple[list[str], list[int]]:
    """Return R texts, each a caption after its image's prompt, and the B lengths of the prompts.

    captions: B lists of strings, R in all. prompts: B strings. The captioner's own prompt replaces
    a prompt that is None; it is used for all images if `prompts` is None. A length is a number of
    tokens.
    """
    own_prompt, lengths, texts = (captioner.prompt, captioner.prompt_ids.size(-1)), [], []
    for group, prompt in zip(captions, prompts or [None] * len(captions)):
        start, length = own_prompt
        if prompt is not None:
            start, length = f"{prompt.strip()} ", len(captioner.tokenizer.encode_prompt(prompt))
        texts += [start + caption for caption in group]
        lengths.append(length)
    return texts, lengths


class CaptionGenerator(nn.Module):
    """The methods of `captioning.captioners.interface.Captioner` that captioners have in common.

    inference_context: returns a context manager in which captions are generated, such as one that
    turns autocast off. A subclass may also use it elsewhere, such as in `encode`.
    """

    null_image: NullImage
    inference_context: Any = nullcontext
    min_batch_size, has_unused_parameters = 1, False

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
        """Return the caption of ids (L,) as text, without the prompt."""

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

        other: the same images with noise, encoded, from `encode_noisy`; None without contrast.
        """
        other = second_stream(self, encoded, settings, other)
        with self.inference_context():
            return generate_captions(
                self.step_function(encoded, settings, other),
                self.prompt_ids,
                encoded,
                self.tokenizer,
                settings,
                self.caption_text,
                partial(self.log_likelihoods, encoded),
            )

    def generate(self, image: Tensor, settings: DecodingSettings) -> list[str]:
        """Return the best caption of each image (B, 3, S, S)."""
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def encode_null(self, encoded: Tensor) -> Tensor:
        return self.null_image.encode_like(self.encode, encoded)

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        return [([p for p in self.parameters() if p.requires_grad], None)]

    def begin_epoch(self, epoch: int) -> None:
        """Nothing changes between epochs."""

    def saved_beside_weights(self) -> dict[str, Any]:
        return {}
