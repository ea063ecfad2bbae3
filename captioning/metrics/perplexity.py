"""Computes the perplexity of captions under GPT-2, which is low for fluent, ordinary captions."""

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores, option
from captioning.metrics.batches import in_batches
from captioning.metrics.intervals import mean_estimate
from captioning.metrics.pretrained import encodable, load_pretrained


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
        load_pretrained("ppl_model", self.config.ppl_model, "AutoModelForCausalLM")

    def evaluate(self, captions: CaptionSet) -> Scores:
        source, device = self.config.ppl_model, self.settings.device
        model, tokenizer = load_pretrained("ppl_model", source, "AutoModelForCausalLM")
        model.to(device)
        start, max_tokens = tokenizer.eos_token_id, model.config.max_position_embeddings
        ids = {
            text: tokenizer(encodable(text), verbose=False).input_ids
            for text in captions.texts
            if text.strip()
        }

        @torch.inference_mode()
        def compute(texts):
            # Attention is causal and padding is not scored, so that the value of a text does not
            # depend on the other texts of the batch.
            tokens = [
                torch.tensor([start, *ids[text]][:max_tokens], device=device) for text in texts
            ]
            padded = pad_sequence(tokens, batch_first=True, padding_value=start)  # (B, N)
            states = model.base_model(padded[:, :-1], use_cache=False)[0]  # (B, N - 1, W)
            # The logits (N - 1, V) of all texts of a batch might not fit in memory.
            head = model.get_output_embeddings()
            losses = [
                F.cross_entropy(head(state[: len(each) - 1]).double(), each[1:])
                for state, each in zip(states, tokens)
            ]
            return torch.stack(losses).exp().cpu().numpy()

        # Texts of similar length need little padding.
        texts = sorted(ids, key=len)
        values = in_batches(texts, compute, self.settings.batch_size, "GPT-2") if texts else ()
        by_text = dict(zip(texts, map(float, values)))
        per_caption = list(map(by_text.get, captions.texts))
        defined = [value for value in per_caption if value is not None]
        return Scores(
            {"PPL": mean_estimate(defined)} if defined else {},
            {"PPL": per_caption},
            {
                "ppl_model": source,
                "ppl_truncated": sum(
                    len(ids.get(text, ())) >= max_tokens for text in captions.texts
                ),
                "ppl_empty": per_caption.count(None),
            },
            {} if defined else {"PPL": "no caption has a word"},
        )
