"""Computes the perplexity of captions under GPT-2, which is low for fluent, ordinary captions."""

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores, option
from captioning.metrics.batches import in_batches
from captioning.metrics.intervals import mean_estimate
from captioning.metrics.pretrained import load_pretrained, load_tokenizer


class Perplexity(Evaluator):
    """PPL: the mean over captions of exp(mean negative log-likelihood of a caption's tokens).

    <|endoftext|> is put before each caption, so that its first word is scored. The end of a caption
    is not scored. A caption that consists of white space has no value.
    """

    metrics = (
        Metric(
            "PPL",
            "PPL",
            direction="lower",
            meaning="how surprising the caption's words are to GPT-2",
            report_title="Perplexity",
        ),
    )
    options = {
        "ppl_model": option(str, "gpt2", "GPT-2 for perplexity: a hub id or a folder", min_length=1)
    }

    def check_requirements(self) -> None:
        LanguageModel(self.config.ppl_model)

    def evaluate(self, captions: CaptionSet) -> Scores:
        model = LanguageModel(self.config.ppl_model, self.settings.device)
        # Texts of similar length need little padding.
        texts = sorted({text for text in captions.texts if text.strip()}, key=len)
        size = self.settings.batch_size
        values = in_batches(texts, model.perplexities, size, "GPT-2") if texts else ()
        by_text = dict(zip(texts, map(float, values)))
        settings = {
            "ppl_model": self.config.ppl_model,
            "ppl_truncated": sum(
                len(model.encode(text)) > model.max_tokens for text in captions.texts
            ),
            "ppl_empty": sum(text not in by_text for text in captions.texts),
        }
        each = list(map(by_text.get, captions.texts))
        scores = Scores(per_caption={"PPL": each}, settings=settings)
        if texts:
            scores.metrics["PPL"] = mean_estimate([value for value in each if value is not None])
        else:
            scores.skipped["PPL"] = "no caption has a word"
        return scores


class LanguageModel:
    """GPT-2 in float32 on a device. source: a hub id or a folder. Raises UserError."""

    def __init__(self, source: str, device: str = "cpu"):
        self.model = load_pretrained("ppl_model", source, "AutoModelForCausalLM").to(device)
        self.tokenizer = load_tokenizer("ppl_model", source)
        self.start = self.tokenizer.eos_token_id
        self.max_tokens, self.device = self.model.config.max_position_embeddings, device

    def encode(self, text: str) -> list[int]:
        """Return a text's ids after <|endoftext|>."""
        # A text from JSON may contain a lone surrogate, which cannot be encoded: it becomes "?".
        text = text.encode("utf-8", "replace").decode()
        return [self.start, *self.tokenizer(text, verbose=False).input_ids]

    @torch.inference_mode()
    def perplexities(self, texts: list[str]) -> np.ndarray:
        """Return the perplexities (B,) of B texts that are not blank.

        Attention is causal and padding is not scored, so that the value of a text does not depend
        on the other texts of the batch.
        """
        ids = [
            torch.tensor(self.encode(text)[: self.max_tokens], device=self.device) for text in texts
        ]
        padded = pad_sequence(ids, batch_first=True, padding_value=self.start)  # (B, N)
        states = self.model.base_model(padded[:, :-1], use_cache=False)[0]  # (B, N - 1, W)
        values = []
        for each, state in zip(ids, states):  # the logits of all texts might not fit in memory
            logits = self.model.get_output_embeddings()(state[: len(each) - 1])
            values.append(F.cross_entropy(logits, each[1:]).double().exp().item())
        return np.array(values)
