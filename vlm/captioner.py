"""A model of transformers behind the interface of a captioner."""

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
from vlm.collate import answered, decoded, questions
from vlm.feature_reuse import SeenOnce
from vlm.generation import draw
from vlm.image_batch import Pictures
from vlm.library import blocks_of
from vlm.prompt import PROBE, Question, read_by
from vlm.tokenization import Words

LONGEST = ("max_position_embeddings", "n_positions")


class VlmCaptioner(nn.Module):
    """The objective is made of hidden states in training, so no step has all logits."""

    prompt, min_batch_size, has_unused_parameters = "", 1, True

    def __init__(self, model: nn.Module, question: Question, objective: Objective, max_tokens: int):
        super().__init__()
        self.question, self.max_tokens = question, max_tokens
        self.decodes = encoder_decoder(_base(model))
        self.tokenizer = words_of(model, question)
        self.begin = begin_of(model, question) if self.decodes else []
        self.prompt_ids = torch.zeros(0, dtype=torch.int64)
        self.max_positions = self._room(_base(model))
        # A suffix is what PaliGemma's processor calls an answer, whose words see what is before.
        self.type_of_words = int(question.kind == "paligemma")
        self.read = read_by(_base(model)) - {"labels"}
        words = self.tokenizer
        pad = None if words.filler in words.ends else words.filler
        self.objective = objective.with_tokens(pad, words.end)
        use_smile(model, self.objective, from_hidden=True)
        self.model = model
        self.once = SeenOnce(_base(model))

    def forward(self, image: Pictures, captions: list[list[str]]) -> ObjectiveOutput:
        with self._rows_seen_once(image, captions) as (batch, labels):
            loss = self.model(**batch, labels=labels).loss
        return ObjectiveOutput(loss, last_parts(self.model), (labels != IGNORED).sum())

    def predictions(self, image: Pictures, captions: list[list[str]]) -> tuple[Tensor, Tensor]:
        with self._rows_seen_once(image, captions) as (batch, labels):
            logits = self.model(**batch).logits
        logits, labels = in_step(_base(self.model), logits, labels, tokens=batch.get("input_ids"))
        first = int((labels != IGNORED).any(0).int().argmax())  # nothing is scored before
        return logits[:, first:], labels[:, first:]

    def rows(self, image: Pictures, captions: list[list[str]]) -> tuple[dict[str, Tensor], Tensor]:
        """What the model reads of k captions of each image, and their labels, -100 but for the
        captions and their ends."""
        count = captions_an_image(captions, len(image))
        return self._answered(self._read(image).repeated(count), self._answers(captions))

    @contextmanager
    def _rows_seen_once(self, image: Pictures, captions: list[list[str]]) -> Iterator[tuple]:
        """`rows`, of which the model encodes an image once; it is to be called within."""
        count = captions_an_image(captions, len(image))
        with self.once(self._read(image), count) as (pictures, features):
            batch, labels = self._answered(pictures, self._answers(captions))
            yield {**batch, **features}, labels

    def _answers(self, captions: list[list[str]]) -> list[list[int]]:
        return [self.tokenizer.ids(text, self.max_tokens) for group in captions for text in group]

    def _answered(self, pictures: Pictures, answers) -> tuple[dict[str, Tensor], Tensor]:
        if self.decodes:
            return decoded(pictures, answers, self.begin, self.tokenizer.filler)
        return answered(pictures, answers, self.tokenizer.filler, self.type_of_words)

    def _read(self, image: Pictures) -> Pictures:
        """What of the processor's output the model takes, which may be more."""
        return Pictures([{k: v for k, v in i.items() if k in self.read} for i in image.items])

    def generate(self, image: Pictures, settings: DecodingSettings) -> list[str]:
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def generate_details(self, image: Pictures, settings: DecodingSettings) -> Generated:
        return self.generate_from(self.encode(image), settings)

    def encode(self, image: Pictures) -> Pictures:
        """The photos themselves, which the library's `generate` encodes."""
        return image

    def generate_from(self, encoded: Pictures, settings: DecodingSettings) -> Generated:
        words = self.tokenizer
        inputs = questions(self._read(encoded), words.filler)
        begin = len(self.begin)
        if self.decodes:
            device = next(iter(inputs.values())).device
            start = torch.tensor(self.begin, device=device).expand(len(encoded), -1)
            inputs["decoder_input_ids"] = start
        else:
            begin = inputs["input_ids"].size(1)
        tokens = (words.ends, words.filler, begin, words.pad)
        ids, scores = draw(self.model, inputs, settings, *tokens)
        ids = ids.unflatten(0, (len(encoded), -1))
        captions = [[words.decode(row[row != words.pad]) for row in rows] for rows in ids]
        return Generated(captions, ids, scores.unflatten(0, (len(encoded), -1)))

    def score_tokens(self, encoded: Pictures, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        batch, labels = self._answered(self._read(encoded), [ids.tolist()])
        attention_map = None
        if self.decodes:
            output, attention_map = with_cross_attention(
                self.model, batch, self.question.image_token
            )
        else:
            output = self.model(**batch)
        tokens = batch.get("input_ids")
        logits, labels = in_step(_base(self.model), output.logits, labels, tokens=tokens)
        said = labels[0] != IGNORED
        return logits[0, said], None if attention_map is None else attention_map[said]

    def log_likelihoods(self, encoded: Pictures, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """Never asked for: `reward` is refused."""
        raise NotImplementedError

    def for_inference(self, dtype: torch.dtype, compiled: bool) -> nn.Module:
        return self.eval()

    def compile_parts(self) -> None:
        """Never asked for: `compile` is refused."""

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        return [([p for p in self.parameters() if p.requires_grad], None)]

    def shards(self) -> list[nn.Module]:
        """Layers of encoders and decoder. The head stays with what is around them, and is whole
        where the objective is made of it."""
        return blocks_of(self.model)

    def begin_epoch(self, epoch: int) -> None:
        """Every epoch is like the others."""

    def saved_beside_weights(self) -> dict[str, Any]:
        """peft's own description of an adapter, whose weights are all that is saved."""
        return {CONFIG: adapter_config(self.model)} if is_adapted(self.model) else {}

    def state_dict(self, *args, **kwargs) -> dict[str, Tensor]:
        if is_adapted(self.model):
            return adapter_state(self.model, **kwargs)
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict, *args, **kwargs):
        if is_adapted(self.model):
            return load_adapter_state(self.model, state_dict)
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _room(self, model: nn.Module) -> Optional[int]:
        """The tokens that learnt positions leave for a caption, after a question about a photo."""
        config = model.config.get_text_config(decoder=True)
        longest = next((n for k in LONGEST if (n := getattr(config, k, None))), None)
        if longest is None or getattr(config, "rope_parameters", None) is not None:
            return None
        before = self.begin if self.decodes else self.question(PROBE)["input_ids"][0]
        return longest - len(before)


def _base(model: nn.Module) -> nn.Module:
    """The model of transformers in one of peft."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def words_of(model: nn.Module, question: Question) -> Words:
    """Raises ValueError for a tokenizer that is not of the model."""
    tokenizer, name = question.parts.tokenizer, question.parts.name
    ends = _base(model).generation_config.eos_token_id
    ends = [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [ends]
    words, known = Words(tokenizer, question.turn, ends, question.image_token), head_size(model)
    if len(words) > known:
        raise ValueError(
            f"vlm is {name}, whose tokenizer has {len(words)} tokens, but the model {known}: one "
            "is of another model"
        )
    return words


def head_size(model: nn.Module) -> int:
    """V of its language head."""
    return len(language_head(_base(model)).weight)


def begin_of(model: nn.Module, question: Question) -> list[int]:
    """What a decoder begins with: its start, and what its tokenizer puts before a text."""
    model, tokenizer = _base(model), question.parts.tokenizer
    places = (model.generation_config, model.config, model.config.get_text_config(decoder=True))
    names = ("decoder_start_token_id", "bos_token_id")
    starts = [getattr(place, name, None) for name in names for place in places]
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise ValueError(f"vlm is {question.parts.name}, whose decoder has no start token")
    first, *_ = [*tokenizer("a")["input_ids"], start]
    special = first in tokenizer.all_special_ids and first not in (start, tokenizer.eos_token_id)
    return [start, first] if special else [start]
