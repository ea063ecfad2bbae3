"""Computes the perplexity of captions under GPT-2, which is low for fluent, ordinary captions."""

from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from captioning.files.reading import read_json
from captioning.metrics.bootstrap import mean_estimate
from captioning.metrics.evaluator import CaptionSet, Evaluator, Scores
from captioning.metrics.model_files import END, BpeTokenizer, find_model, load_model, read_weights
from captioning.metrics.options import Options
from captioning.metrics.over_ranks import batches_by_length, call_on_all_ranks, map_over_ranks

# The maximum number of tokens in a batch. A token has 50,257 float32 logits, so that the logits of
# a batch take about 400 MB.
TOKENS_AT_ONCE = 2048


class PerplexityOptions(Options):
    ppl_model: Annotated[str, "scoring"] = Field(
        "gpt2", min_length=1, description="GPT-2 for perplexity: a hub id or a folder"
    )


class Perplexity(Evaluator):
    """PPL: the mean over captions of exp(mean negative log-likelihood of a caption's tokens).

    <|endoftext|> is put before each caption, so that its first word is scored. The end of a caption
    is not scored. A caption that consists of white space has no value.
    """

    name = "perplexity"
    Options = PerplexityOptions
    on_every_rank = True

    def check_requirements(self) -> None:
        find_model("ppl_model", self.options.ppl_model)

    def evaluate(self, captions: CaptionSet) -> Scores:
        model = call_on_all_ranks(
            lambda: LanguageModel(self.options.ppl_model, self.settings.device)
        )
        texts = captions.texts
        kept = [index for index, text in enumerate(texts) if text.strip()]
        ids, truncated = model.encode([texts[index] for index in kept])
        lengths = [len(text) for text in ids]
        batches = batches_by_length(lengths, self.settings.batch_size, TOKENS_AT_ONCE)
        settings = {
            "ppl_model": self.options.ppl_model,
            "ppl_truncated": truncated.count(True),
            "ppl_empty": len(texts) - len(kept),
        }
        if not kept:
            skipped = {"PPL": "no caption has a word"}
            return Scores({}, {"PPL": [None] * len(texts)}, settings=settings, skipped=skipped)
        values = map_over_ranks(batches, ids.__getitem__, model.perplexities, "GPT-2", "caption")
        if values is None:  # on ranks other than 0
            return Scores({})
        found = dict(zip(kept, values.tolist()))
        columns = {"PPL": [found.get(index) for index in range(len(texts))]}
        return Scores({"PPL": mean_estimate(values)}, columns, settings=settings)


class LanguageModel:
    """GPT-2 in float32 on a device. source: a hub id or a folder. Raises UserError."""

    def __init__(self, source: str, device: str = "cpu"):
        from transformers import GPT2Config, GPT2Model

        files = find_model("ppl_model", source)
        self.tokenizer = BpeTokenizer(files, style="gpt2")
        self.start = self.tokenizer.special(END)
        state = read_weights(files.weights)
        state = {name.removeprefix("transformer."): value for name, value in state.items()}
        special_ids = {"bos_token_id": self.start, "eos_token_id": self.start}

        def build():
            return GPT2Model(GPT2Config.from_dict({**read_json(files.config), **special_ids}))

        self.model = load_model("ppl_model", files, build, state).to(device)
        self.max_tokens, self.device = self.model.config.n_positions, device

    def encode(self, texts: list[str]) -> tuple[list[list[int]], list[bool]]:
        """Return each text's ids after <|endoftext|>, and whether the text was truncated."""
        ids = [[self.start, *text] for text in self.tokenizer.encode(texts)]
        truncated = [len(text) > self.max_tokens for text in ids]
        return [text[: self.max_tokens] for text in ids], truncated

    @torch.inference_mode()
    def perplexities(self, ids: list[list[int]]) -> np.ndarray:
        """Return the perplexities (B,) of B texts of two or more ids each.

        Attention is causal and padding is not scored, so that the value of a text does not depend
        on the other texts of the batch.
        """
        texts = [torch.tensor(text) for text in ids]
        labels = pad_sequence(texts, batch_first=True, padding_value=-100).to(self.device)  # (B, N)
        tokens = labels.masked_fill(labels == -100, self.start)
        states = self.model(tokens[:, :-1], use_cache=False)[0]  # (B, N - 1, W)
        logits = states @ self.model.wte.weight.T  # (B, N - 1, V); the head is the word embedding
        labels = labels[:, 1:]
        losses = F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none"
        ).view(labels.shape)  # (B, N - 1); 0 at padding
        counts = torch.tensor([len(text) - 1 for text in ids], dtype=torch.float64)
        return (losses.double().cpu().sum(1) / counts).exp().numpy()
