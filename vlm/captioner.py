"""A captioner that wraps an image-text-to-text model of transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch
from torch import Tensor, nn

from adapters.lora import CONFIG, adapter_config, adapter_state, is_adapted, load_adapter_state
from decoding import DecodingSettings, Generated
from smile import Objective, ObjectiveOutput
from smile.hf import last_parts, use_smile
from smile.hf.families import IGNORED, encoder_decoder, in_step
from smile.hf.head import language_head
from smile.objective import captions_an_image
from vlm.attention_map import with_cross_attention
from vlm.collate import collate_decoder_only, collate_encoder_decoder, collate_prompts
from vlm.feature_reuse import FeatureReuse
from vlm.generation import generate
from vlm.image_batch import ImageBatch
from vlm.library import checkpointed_layers
from vlm.prompt import PROBE_IMAGE, PromptProcessor, forward_arguments
from vlm.tokenization import CaptionTokenizer

LONGEST = ("max_position_embeddings", "n_positions")


class VlmCaptioner(nn.Module):
    """Implements `captioning.captioners.interface.Captioner`.

    Training computes the objective by the fused linear loss, without a tensor of all logits.
    """

    prompt, min_batch_size, has_unused_parameters, null_image = "", 1, True, None

    def __init__(
        self,
        model: nn.Module,
        prompt_processor: PromptProcessor,
        objective: Objective,
        max_tokens: int,
    ):
        super().__init__()
        self.prompt_processor, self.max_tokens = prompt_processor, max_tokens
        self.decodes = encoder_decoder(_base(model))
        self.tokenizer = tokenizer_of(model, prompt_processor)
        self.decoder_prefix = decoder_prefix_of(model, prompt_processor) if self.decodes else []
        self.prompt_ids = torch.zeros(0, dtype=torch.int64)
        self.max_positions = self._max_positions(_base(model))
        # PaliGemma's processor marks the caption as a suffix, with causal attention.
        self.answer_token_type = int(prompt_processor.kind == "paligemma")
        self.read = forward_arguments(_base(model)) - {"labels"}
        words = self.tokenizer
        pad = None if words.library_pad in words.ends else words.library_pad
        self.objective = objective.with_tokens(pad, words.end)
        use_smile(model, self.objective, from_hidden=True)
        self.model = model
        self.feature_reuse = FeatureReuse(_base(model))

    def forward(
        self, image: ImageBatch, captions: list[list[str]], dropped: Optional[Tensor] = None
    ) -> ObjectiveOutput:
        with self._rows_with_shared_features(image, captions) as (batch, labels):
            loss = self.model(**batch, labels=labels).loss
        return ObjectiveOutput(loss, last_parts(self.model), (labels != IGNORED).sum())

    def predictions(self, image: ImageBatch, captions: list[list[str]]) -> tuple[Tensor, Tensor]:
        with self._rows_with_shared_features(image, captions) as (batch, labels):
            logits = self.model(**batch).logits
        logits, labels = in_step(_base(self.model), logits, labels, tokens=batch.get("input_ids"))
        first = int((labels != IGNORED).any(0).int().argmax())  # no labels before it
        return logits[:, first:], labels[:, first:]

    def rows(
        self, image: ImageBatch, captions: list[list[str]]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Inputs for k captions of each image, and labels: -100 outside the captions and ends."""
        count = captions_an_image(captions, len(image))
        return self._collate(self._read(image).repeated(count), self._caption_ids(captions))

    @contextmanager
    def _rows_with_shared_features(
        self, image: ImageBatch, captions: list[list[str]]
    ) -> Iterator[tuple]:
        """`rows`, with each image encoded once. Call the model inside the context."""
        count = captions_an_image(captions, len(image))
        with self.feature_reuse(self._read(image), count) as (images, features):
            batch, labels = self._collate(images, self._caption_ids(captions))
            yield {**batch, **features}, labels

    def _caption_ids(self, captions: list[list[str]]) -> list[list[int]]:
        return [self.tokenizer.ids(text, self.max_tokens) for group in captions for text in group]

    def _collate(self, images: ImageBatch, answers) -> tuple[dict[str, Tensor], Tensor]:
        if self.decodes:
            return collate_encoder_decoder(
                images, answers, self.decoder_prefix, self.tokenizer.library_pad
            )
        return collate_decoder_only(
            images, answers, self.tokenizer.library_pad, self.answer_token_type
        )

    def _read(self, image: ImageBatch) -> ImageBatch:
        """Only those of the processor's outputs that the model's forward accepts."""
        return ImageBatch([{k: v for k, v in i.items() if k in self.read} for i in image.items])

    def generate(self, image: ImageBatch, settings: DecodingSettings) -> list[str]:
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def generate_details(self, image: ImageBatch, settings: DecodingSettings) -> Generated:
        return self.generate_from(self.encode(image), settings)

    def encode(self, image: ImageBatch) -> ImageBatch:
        """The photos themselves: transformers' `generate` encodes them."""
        return image

    def encode_null(self, encoded: ImageBatch) -> ImageBatch:
        """Not called: the settings that need it are refused for this model."""
        raise NotImplementedError

    def generate_from(
        self, encoded: ImageBatch, settings: DecodingSettings, other: Optional[ImageBatch] = None
    ) -> Generated:
        if settings.two_streams:
            raise ValueError("this captioner has no null image: set guidance_scale to 1")
        words = self.tokenizer
        inputs = collate_prompts(self._read(encoded), words.library_pad)
        decoder_prefix = len(self.decoder_prefix)
        if self.decodes:
            device = next(iter(inputs.values())).device
            start = torch.tensor(self.decoder_prefix, device=device).expand(len(encoded), -1)
            inputs["decoder_input_ids"] = start
        else:
            decoder_prefix = inputs["input_ids"].size(1)
        tokens = (words.ends, words.library_pad, decoder_prefix, words.pad)
        ids, scores = generate(self.model, inputs, settings, *tokens)
        ids = ids.unflatten(0, (len(encoded), -1))
        captions = [[words.decode(row[row != words.pad]) for row in rows] for rows in ids]
        return Generated(captions, ids, scores.unflatten(0, (len(encoded), -1)))

    def score_tokens(self, encoded: ImageBatch, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        batch, labels = self._collate(self._read(encoded), [ids.tolist()])
        attention_map = None
        if self.decodes:
            output, attention_map = with_cross_attention(
                self.model, batch, self.prompt_processor.image_token
            )
        else:
            output = self.model(**batch)
        tokens = batch.get("input_ids")
        logits, labels = in_step(_base(self.model), output.logits, labels, tokens=tokens)
        scored = labels[0] != IGNORED
        return logits[0, scored], None if attention_map is None else attention_map[scored]

    def log_likelihoods(self, encoded: ImageBatch, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """Not called: `reward` is refused for this model."""
        raise NotImplementedError

    def for_inference(self, dtype: torch.dtype, compiled: bool) -> nn.Module:
        return self.eval()

    def compile_parts(self) -> None:
        """Not called: `compile` is refused for this model."""

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        return [([p for p in self.parameters() if p.requires_grad], None)]

    def shards(self) -> list[nn.Module]:
        """Layers of encoders and decoder. The head stays in the root, whole, for the fused loss."""
        return checkpointed_layers(self.model)

    def begin_epoch(self, epoch: int) -> None:
        """Nothing depends on the epoch."""

    def saved_beside_weights(self) -> dict[str, Any]:
        """peft's configuration of an adapter; of weights only the adapter's are saved."""
        return {CONFIG: adapter_config(self.model)} if is_adapted(self.model) else {}

    def state_dict(self, *args, **kwargs) -> dict[str, Tensor]:
        if is_adapted(self.model):
            return adapter_state(self.model, **kwargs)
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict, *args, **kwargs):
        if is_adapted(self.model):
            return load_adapter_state(self.model, state_dict)
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _max_positions(self, model: nn.Module) -> Optional[int]:
        """Positions left for a caption after prompt and image; None if none are learnt."""
        config = model.config.get_text_config(decoder=True)
        longest = next((n for k in LONGEST if (n := getattr(config, k, None))), None)
        if longest is None or getattr(config, "rope_parameters", None) is not None:
            return None
        before = (
            self.decoder_prefix
            if self.decodes
            else self.prompt_processor(PROBE_IMAGE)["input_ids"][0]
        )
        return longest - len(before)


def _base(model: nn.Module) -> nn.Module:
    """The base model, without peft's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def tokenizer_of(model: nn.Module, prompt_processor: PromptProcessor) -> CaptionTokenizer:
    """Raises ValueError for a tokenizer with more tokens than the model's head has rows."""
    tokenizer, name = prompt_processor.parts.tokenizer, prompt_processor.parts.name
    ends = _base(model).generation_config.eos_token_id
    ends = [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [ends]
    words, known = (
        CaptionTokenizer(tokenizer, prompt_processor.turn, ends, prompt_processor.image_token),
        head_rows(model),
    )
    if len(words) > known:
        raise ValueError(
            f"vlm is {name}, whose tokenizer has {len(words)} tokens, but the model {known}: one "
            "is of another model"
        )
    return words


def head_rows(model: nn.Module) -> int:
    """V of the language head."""
    return len(language_head(_base(model)).weight)


def decoder_prefix_of(model: nn.Module, processor: PromptProcessor) -> list[int]:
    """The tokens before a caption: the start, and what the tokenizer puts before a text."""
    model, tokenizer = _base(model), processor.parts.tokenizer
    places = (model.generation_config, model.config, model.config.get_text_config(decoder=True))
    names = ("decoder_start_token_id", "bos_token_id")
    starts = [getattr(place, name, None) for name in names for place in places]
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise ValueError(f"vlm is {processor.parts.name}, whose decoder has no start token")
    first, *_ = [*tokenizer("a")["input_ids"], start]
    special = first in tokenizer.all_special_ids and first not in (start, tokenizer.eos_token_id)
    return [start, first] if special else [start]
