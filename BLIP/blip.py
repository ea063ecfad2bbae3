"""The captioner: image encoder, text decoder and tokeniser behind one interface."""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from BLIP.cached_step import CachedStep
from BLIP.first_token import FirstTokenShift
from BLIP.gaze import looked_at
from BLIP.inference import inference_copy
from BLIP.med import TextDecoder
from BLIP.tokenizer import CaptionTokenizer
from BLIP.vit import ImageEncoder
from decoding import DecodingSettings, Generated, draw_captions
from smile import ObjectiveOutput
from smile.objective import captions_an_image


class BlipCaptioner(nn.Module):
    """BLIP (arXiv 2201.12086) as a captioner: a ViT and a decoder that looks at its output.

    It satisfies `captioning.captioners.interface.Captioner`, which says what each method is for.

    prompt: what every caption starts with, not scored in training and cut off in generation.
    max_tokens: training captions are cut to so many tokens, [DEC] and [SEP] included.
    shift: turns the first word of a caption into a piece, in training and generation.
    """

    def __init__(
        self,
        visual_encoder: ImageEncoder,
        text_decoder: TextDecoder,
        tokenizer: CaptionTokenizer,
        prompt: str = "a picture of ",
        max_tokens: int = 40,
        shift: Optional[FirstTokenShift] = None,
    ):
        super().__init__()
        self.visual_encoder = visual_encoder
        self.text_decoder = text_decoder
        self.tokenizer = tokenizer
        self.prompt = prompt
        self.prompt_ids = tokenizer.encode_prompt(prompt)  # (n,)
        self.max_tokens = max_tokens
        self.shift = shift
        self.new_step = CachedStep  # or another maker of step functions, called as it is
        self.smallest_batch = 1

    @property
    def max_positions(self) -> int:
        return self.text_decoder.max_length

    def forward(self, image: Tensor, captions: list[list[str]]) -> ObjectiveOutput:
        """The objective on k captions of each image, which is encoded once.

        image: (B, 3, S, S), normalised; captions: B lists of k strings, without the prompt. Raises
        ValueError where their numbers differ.
        """
        tokens, attention_mask, labels = self._encode(image, captions)
        return self.text_decoder(
            tokens, attention_mask, self.visual_encoder(image), labels, len(self.prompt_ids)
        )

    def predictions(self, image: Tensor, captions: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Logits (R, N, V) and the labels (R, N) that they predict, R = B * k; see `forward`."""
        tokens, attention_mask, labels = self._encode(image, captions)
        start = len(self.prompt_ids)
        embeds = self.visual_encoder(image)
        logits = self.text_decoder.logits(tokens, attention_mask, embeds, start - 1)
        return logits[:, :-1], labels[:, start:]

    def _encode(self, image: Tensor, captions: list[list[str]]) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, attention mask and labels, int64 (R, n) each, where the images are."""
        captions_an_image(captions, len(image))
        texts = [self.prompt + caption for group in captions for caption in group]
        tokens, attention_mask = self.tokenizer.encode(texts, self.max_tokens)
        if self.shift:
            tokens = self.shift.apply(tokens, len(self.prompt_ids))
        labels = tokens.masked_fill(attention_mask == 0, self.text_decoder.objective.ignore_index)
        return tuple(
            t.to(image.device, non_blocking=True) for t in (tokens, attention_mask, labels)
        )

    @torch.inference_mode()
    def generate_details(self, image: Tensor, settings: DecodingSettings) -> Generated:
        """Captions of images (B, 3, S, S) with their token ids and scores."""
        return self.generate_from(self.encode(image), settings)

    @torch.inference_mode()
    def generate_from(self, encoded: Tensor, settings: DecodingSettings) -> Generated:
        """Captions of images that are encoded, (B, 1 + P, width)."""
        step = self.new_step(self.text_decoder, encoded, settings.max_length)
        return draw_captions(
            step, self.prompt_ids, encoded, self.tokenizer, settings, self._caption
        )

    def encode(self, image: Tensor) -> Tensor:
        """Images (B, 3, S, S) -> (B, 1 + P, width), P patches after [CLS]."""
        return self.visual_encoder(image)

    @torch.inference_mode()
    def reread(self, encoded: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (n - p, V) of the ids (n,) after the prompt, and the cross-attention (n - p, P).

        encoded: of one image, (1, 1 + P, width). The attention is to the patches, the mean over
        heads and layers, without what is given to [CLS].
        """
        start, tokens = len(self.prompt_ids) - 1, ids[None, :-1]
        with looked_at(self.text_decoder) as attention:
            logits = self.text_decoder.logits(tokens, torch.ones_like(tokens), encoded, start)
        patches = torch.stack(attention).mean(0)[start:, 1:]
        return logits[0], patches / patches.sum(1, keepdim=True)

    def generate(self, image: Tensor, settings: DecodingSettings) -> list[str]:
        """The best caption of each image (B, 3, S, S)."""
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def for_inference(
        self, dtype: torch.dtype = torch.float32, compiled: bool = False
    ) -> "BlipCaptioner":
        return inference_copy(self, dtype, compiled)

    def compile_parts(self) -> None:
        for part in self.children():
            part.compile()

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        return [([p for p in self.parameters() if p.requires_grad], None)]

    def begin_epoch(self, epoch: int) -> None:
        """Every epoch is as the one before."""

    def saved_beside_weights(self) -> dict[str, Any]:
        return {}

    def _caption(self, ids: Tensor) -> str:
        if self.shift:
            ids = self.shift.undo(ids.cpu(), len(self.prompt_ids))
        return self.tokenizer.decode(ids)[len(self.prompt) :]
