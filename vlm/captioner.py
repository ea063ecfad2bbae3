"""Makes a captioner from an image-text-to-text model of transformers."""

from collections.abc import Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor, nn

from decoding import DecodingSettings, Generated, SettingsError
from decoding.caption_generator import CaptionGenerator, Prompts
from smile import Objective, ObjectiveOutput
from smile.forward import is_encoder_decoder, last_parts, use_smile
from smile.loss import IGNORE
from vlm.attention_map import run_with_cross_attention
from vlm.batch import ImageBatch, Item, collate, with_caption
from vlm.generation import generate
from vlm.prompt import NEGATIVE_PROMPT, PromptProcessor, check_guidance, positions_of
from vlm.tokenization import CaptionTokenizer


class VlmCaptioner(CaptionGenerator):
    """Implements `captioning.captioners.interface.Captioner`, which documents each method.

    Training computes logits only at the captions, if the model can. `generate` of transformers
    generates the captions.
    """

    # The prompt is an input of the model, not the beginning of a caption.
    prompt, prompt_ids, has_unused_parameters = "", torch.zeros(0, dtype=torch.int64), True
    log_likelihoods = compile_parts = None  # for `reward`, `rerank` and `compile`, which it refuses

    def __init__(
        self,
        model: nn.Module,
        prompt_processor: PromptProcessor,
        objective: Objective,
        max_tokens: int,
    ):
        """Raises ValueError if the tokenizer has more ids than the model's head has rows.

        - model: the model, with or without LoRA.
        - max_tokens: the length to which training captions are truncated, including the end token.
        """
        super().__init__()
        self.prompt_processor, self.max_tokens = prompt_processor, max_tokens
        parts, ends = prompt_processor.parts, model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else ends or []
        self.tokenizer = CaptionTokenizer(
            parts.tokenizer, prompt_processor.turn, ends, prompt_processor.image_token
        )
        num_tokens, num_rows = len(self.tokenizer), len(model.get_output_embeddings().weight)
        if num_tokens > num_rows:
            raise ValueError(
                f"vlm is {parts.name}, but its tokenizer has {num_tokens} tokens and its model's "
                f"head {num_rows}: they do not belong together"
            )
        self.decoder_prefix = find_decoder_prefix(model, parts.tokenizer)
        self.max_positions = positions_of(parts.config)
        # PaliGemma attends causally within a caption if its tokens have type 1.
        self.caption_token_type = 1 if prompt_processor.family == "paligemma" else None
        self.input_names = {*signature(type(model).forward).parameters} - {"labels"}
        pad, end_tokens = self.tokenizer.library_pad, self.tokenizer.end_tokens
        self.objective = objective.with_tokens(
            None if pad in end_tokens else pad, self.tokenizer.end
        )
        self.model = use_smile(model, self.objective)

    def forward(
        self, image: ImageBatch, captions: list[list[str]], prompts: Prompts = None
    ) -> ObjectiveOutput:
        batch, labels = self.training_batch(image, captions)
        loss = self.model(**batch, labels=labels, keep_logits=False).loss
        return ObjectiveOutput(loss, last_parts(self.model), (labels != IGNORE).sum())

    def predictions(
        self, image: ImageBatch, captions: list[list[str]], prompts: Prompts = None
    ) -> tuple[Tensor, Tensor]:
        batch, labels = self.training_batch(image, captions)
        return self._aligned(self.model(**batch).logits, labels)

    def training_batch(self, image: ImageBatch, captions: list[list[str]]) -> tuple[dict, Tensor]:
        """Return the model's inputs and its labels (R, N), with one row per caption.

        Only the tokens of a caption and its end token have a label; all others have -100.
        """
        return self._collate(
            (item, self.tokenizer.ids(text, self.max_tokens))
            for item, group in zip(image.items, captions)
            for text in group
        )

    def _collate(self, pairs: Iterable[tuple[Item, Sequence[int]]]) -> tuple[dict, Tensor]:
        """Return the model's inputs and labels for pairs of a photo and a caption's ids."""
        items = [
            with_caption(item, ids, self.decoder_prefix, self.caption_token_type)
            for item, ids in pairs
        ]
        batch = collate(items, self.tokenizer.library_pad)
        return self._inputs(batch), batch["labels"]

    def _inputs(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: batch[name] for name in batch.keys() & self.input_names}

    def _aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (R, M, V) and labels (R, M): logits[:, m] predicts labels[:, m].

        Positions before the first caption are left out.
        """
        logits = logits[:, -labels.size(1) :]  # some models put the image in front
        if not self.decoder_prefix:
            logits, labels = logits[:, :-1], labels[:, 1:]
        first = int((labels != IGNORE).any(0).int().argmax())
        return logits[:, first:], labels[:, first:]

    def encode(self, image: ImageBatch) -> ImageBatch:
        """Return the images unchanged, because `generate` of transformers encodes them."""
        return image

    def generate_from(self, encoded: ImageBatch, settings: DecodingSettings) -> Generated:
        check_guidance(settings, self.prompt_processor.family)
        batch = collate(encoded.items, self.tokenizer.library_pad, left=True)
        inputs, images = self._inputs(batch), len(encoded)
        if self.decoder_prefix:
            device = next(iter(inputs.values())).device
            start = torch.tensor(self.decoder_prefix, device=device)
            inputs["decoder_input_ids"] = start.expand(images, -1)
        if settings.guidance_scale != 1:
            prompts = batch.get(NEGATIVE_PROMPT)
            if prompts is None or (prompts != prompts[0]).any():
                raise SettingsError(
                    f"guidance_scale is {settings.guidance_scale}, which needs one prompt for all "
                    "images of a batch, and a chat template that can write it without an image: "
                    "set guidance_scale to 1, or the batch size to 1"
                )
            inputs[NEGATIVE_PROMPT] = prompts.repeat_interleave(settings.num_return, 0)
        ids, *scores = generate(self.model, inputs, settings, self.tokenizer)
        captions = [self.caption_text(row) for row in ids]
        count = settings.num_return
        return Generated(
            [captions[first : first + count] for first in range(0, len(captions), count)],
            ids.view(images, count, -1),
            *(None if values is None else values.view(images, count) for values in scores),
        )

    def score_tokens(self, encoded: ImageBatch, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        batch, labels = self._collate([(encoded.items[0], ids.tolist())])
        if self.decoder_prefix:
            image_token = self.prompt_processor.image_token
            output, attention_map = run_with_cross_attention(self.model, batch, image_token)
        else:
            output, attention_map = self.model(**batch), None
        (logits,), _ = self._aligned(output.logits, labels)
        return logits, None if attention_map is None else attention_map[-len(ids) :]

    def shards(self) -> list[nn.Module]:
        """Return the layers of the encoders and of the decoder, without layers inside a layer."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        outermost, nested = [], set()
        for module in self.model.modules():  # parents come before their children
            if isinstance(module, GradientCheckpointingLayer) and module not in nested:
                outermost.append(module)
                nested.update(module.modules())
        return outermost

    def save_pretrained(self, folder: Path) -> None:
        """Write the model and its processor, for `from_pretrained` of transformers."""
        parts = self.prompt_processor.parts
        for part in (self.model, parts.processor, parts.tokenizer):
            part.save_pretrained(folder)


def find_decoder_prefix(model: nn.Module, tokenizer: Any) -> list[int]:
    """Return the ids that an encoder-decoder's decoder reads before a caption.

    The result is [] for a decoder-only model, [start], or [start, special] if the tokenizer puts
    another special token, such as a language code, before each text.
    """
    if not is_encoder_decoder(model):
        return []
    configs = (model.generation_config, model.config, model.config.get_text_config(decoder=True))
    names = ("decoder_start_token_id", "bos_token_id")
    starts = (getattr(config, name, None) for name in names for config in configs)
    start = next(token for token in starts if token is not None)
    first, *_ = tokenizer("a")["input_ids"]
    is_special = first in {*tokenizer.all_special_ids} - {start, tokenizer.eos_token_id}
    return [start, first] if is_special else [start]
