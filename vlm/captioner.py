"""Makes a captioner from an image-text-to-text model of transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, Optional

import torch
from torch import Tensor, nn

from adapters.lora import AdaptedState
from decoding import DecodingSettings, Generated, SettingsError
from decoding.caption_generator import CaptionGenerator, captions_per_image
from smile import Objective, ObjectiveOutput
from smile.hf import is_encoder_decoder, last_parts, use_smile
from smile.loss import IGNORE
from vlm.attention_map import run_with_cross_attention
from vlm.collate import collate, collate_decoder_only, collate_encoder_decoder
from vlm.feature_reuse import FeatureReuse
from vlm.generation import generate
from vlm.image_batch import ImageBatch
from vlm.library import checkpointed_layers, language_head
from vlm.prompt import (
    NEGATIVE_PROMPT,
    PROBE_IMAGE,
    PromptProcessor,
    check_guidance,
    learnt_positions,
)
from vlm.tokenization import CaptionTokenizer


class VlmCaptioner(AdaptedState, CaptionGenerator):
    """Implements `captioning.captioners.interface.Captioner`, which documents each method.

    Training computes logits only at the captions, if the model can. `generate` of transformers
    generates the captions. model: the model, with or without LoRA. max_tokens: the length to which
    training captions are truncated, including the end token.
    """

    # The prompt is an input of the model, not the beginning of a caption.
    prompt, has_unused_parameters = "", True

    def __init__(
        self,
        model: nn.Module,
        prompt_processor: PromptProcessor,
        objective: Objective,
        max_tokens: int,
    ):
        super().__init__()
        self.prompt_processor, self.max_tokens = prompt_processor, max_tokens
        self.is_encoder_decoder = is_encoder_decoder(model)
        self.tokenizer = build_tokenizer(model, prompt_processor)
        self.decoder_prefix = (
            find_decoder_prefix(model, prompt_processor) if self.is_encoder_decoder else []
        )
        self.prompt_ids = torch.zeros(0, dtype=torch.int64)
        self.max_positions = self._max_positions(model.config.get_text_config(decoder=True))
        # PaliGemma attends causally within a caption if its tokens have type 1.
        self.caption_token_type = int(prompt_processor.family == "paligemma")
        self.input_names = {*signature(type(model).forward).parameters} - {"labels"}
        tokenizer = self.tokenizer
        pad = None if tokenizer.library_pad in tokenizer.end_tokens else tokenizer.library_pad
        self.objective = objective.with_tokens(pad, tokenizer.end)
        use_smile(model, self.objective)
        self.model = model
        self.feature_reuse = FeatureReuse(model)

    def forward(self, image: ImageBatch, captions: list[list[str]]) -> ObjectiveOutput:
        with self._rows_with_shared_features(image, captions) as (batch, labels):
            loss = self.model(**batch, labels=labels, keep_logits=False).loss
        return ObjectiveOutput(loss, last_parts(self.model), (labels != IGNORE).sum())

    def predictions(self, image: ImageBatch, captions: list[list[str]]) -> tuple[Tensor, Tensor]:
        with self._rows_with_shared_features(image, captions) as (batch, labels):
            logits = self.model(**batch).logits
        logits, labels = self._aligned(logits, labels)
        first_labelled = int((labels != IGNORE).any(0).int().argmax())
        return logits[:, first_labelled:], labels[:, first_labelled:]

    def _aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (R, M, V) and labels (R, M): logits[:, m] predicts labels[:, m]."""
        logits = logits[:, -labels.size(1) :]  # some models put the image in front
        return (logits, labels) if self.is_encoder_decoder else (logits[:, :-1], labels[:, 1:])

    @contextmanager
    def _rows_with_shared_features(
        self, image: ImageBatch, captions: list[list[str]]
    ) -> Iterator[tuple]:
        """Yield the model's inputs and its labels (R, N), with one row per caption.

        Only the tokens of a caption and its end token have a label; all others have -100. The model
        must be called within the `with` block, where it encodes each image only once.
        """
        count = captions_per_image(captions, len(image))
        with self.feature_reuse(image.select(self.input_names), count) as (images, features):
            batch, labels = self._collate(images, self._caption_ids(captions))
            yield {**batch, **features}, labels

    def _caption_ids(self, captions: list[list[str]]) -> list[list[int]]:
        return [self.tokenizer.ids(text, self.max_tokens) for group in captions for text in group]

    def _collate(self, images: ImageBatch, caption_ids) -> tuple[dict[str, Tensor], Tensor]:
        if self.is_encoder_decoder:
            return collate_encoder_decoder(
                images, caption_ids, self.decoder_prefix, self.tokenizer.library_pad
            )
        return collate_decoder_only(
            images, caption_ids, self.tokenizer.library_pad, self.caption_token_type
        )

    def encode(self, image: ImageBatch) -> ImageBatch:
        """Return the images unchanged, because `generate` of transformers encodes them."""
        return image

    def generate_from(self, encoded: ImageBatch, settings: DecodingSettings) -> Generated:
        check_guidance(settings, self.prompt_processor.family)
        tokenizer, images = self.tokenizer, len(encoded)
        inputs = collate(encoded.select(self.input_names).items, tokenizer.library_pad, left=True)
        if self.is_encoder_decoder:
            device = next(iter(inputs.values())).device
            start = torch.tensor(self.decoder_prefix, device=device).expand(images, -1)
            inputs["decoder_input_ids"] = start
        if settings.guidance_scale != 1:
            prompt = encoded.items[0].get(NEGATIVE_PROMPT)
            if prompt is None:
                raise SettingsError(
                    f"guidance_scale is {settings.guidance_scale}, but the processor of this model "
                    "cannot write the prompt without an image: set it to 1"
                )
            if any(not torch.equal(prompt, item[NEGATIVE_PROMPT]) for item in encoded.items):
                raise SettingsError(
                    "guidance_scale needs one prompt for all images of a batch: set it to 1, or "
                    "the batch size to 1"
                )
            inputs[NEGATIVE_PROMPT] = prompt.expand(images * settings.num_return, -1)
        ids, scores, own_scores = generate(self.model, inputs, settings, tokenizer)
        ids = ids.unflatten(0, (images, -1))
        captions = [[tokenizer.decode(row) for row in rows] for rows in ids]
        own_scores = None if own_scores is None else own_scores.view(images, -1)
        return Generated(captions, ids, scores.view(images, -1), own_scores)

    def score_tokens(self, encoded: ImageBatch, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        batch, labels = self._collate(encoded.select(self.input_names), [ids.tolist()])
        attention_map = None
        if self.is_encoder_decoder:
            output, attention_map = run_with_cross_attention(
                self.model, batch, self.prompt_processor.image_token
            )
        else:
            output = self.model(**batch)
        logits, labels = self._aligned(output.logits, labels)
        is_scored = labels[0] != IGNORE
        return logits[0, is_scored], None if attention_map is None else attention_map[is_scored]

    def log_likelihoods(self, encoded: ImageBatch, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """Not implemented: it is never called, because model vlm does not support `reward`."""
        raise NotImplementedError

    def compile_parts(self) -> None:
        """Do nothing: it is never called, because model vlm does not support `compile`."""

    def shards(self) -> list[nn.Module]:
        """Return the layers of the encoders and of the decoder, without the head."""
        return checkpointed_layers(self.model)

    @property
    def adapted_module(self) -> nn.Module:
        return self.model

    def _max_positions(self, config: Any) -> Optional[int]:
        """Return the number of positions that prompt and image leave for a caption.

        None means no limit, because the position embeddings are not learnt. config: the
        configuration of the text decoder.
        """
        limit = learnt_positions(config)
        if limit is None:
            return None
        if self.is_encoder_decoder:
            return limit - len(self.decoder_prefix)
        return limit - self.prompt_processor(PROBE_IMAGE)["input_ids"].size(1)


def build_tokenizer(model: nn.Module, prompt_processor: PromptProcessor) -> CaptionTokenizer:
    """Build the tokenizer of captions.

    Raises ValueError if the tokenizer has more ids than the model's head has rows.
    """
    parts = prompt_processor.parts
    ends = model.generation_config.eos_token_id  # an int, a list or None
    ends = [ends] if isinstance(ends, int) else ends or []
    caption_tokenizer = CaptionTokenizer(
        parts.tokenizer,
        prompt_processor.turn,
        end_tokens=ends,
        image_token=prompt_processor.image_token,
    )
    num_tokens, num_rows = len(caption_tokenizer), len(language_head(model).weight)
    if num_tokens > num_rows:
        raise ValueError(
            f"vlm is {parts.name}, but its tokenizer has {num_tokens} tokens and its model's head "
            f"{num_rows}: they do not belong together"
        )
    return caption_tokenizer


def find_decoder_prefix(model: nn.Module, processor: PromptProcessor) -> list[int]:
    """Return the ids that an encoder-decoder's decoder reads before a caption.

    The result is [start], or [start, special] if the tokenizer puts another special token, such as
    a language code, before each text. Raises ValueError if there is no start token.
    """
    tokenizer = processor.parts.tokenizer
    configs = (model.generation_config, model.config, model.config.get_text_config(decoder=True))
    names = ("decoder_start_token_id", "bos_token_id")
    starts = [getattr(config, name, None) for name in names for config in configs]
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise ValueError(f"vlm is {processor.parts.name}, but its decoder has no start token")
    before_text = [
        token
        for token in tokenizer("a")["input_ids"][:1]
        if token in tokenizer.all_special_ids and token not in (start, tokenizer.eos_token_id)
    ]
    return [start, *before_text]
