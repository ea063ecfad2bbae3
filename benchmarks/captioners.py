"""The captioners to measure, with equal weights: ours, transformers', the original's decoding."""

import tempfile
from pathlib import Path
from typing import Optional, Union

import torch
from torch import Tensor, nn

from BLIP import BlipCaptioner, build_captioner
from BLIP.convert import hf_config, to_hf_names
from BLIP.med import Attention, KeysValues, TextDecoder
from BLIP.tokenizer import SPECIAL_TOKENS
from BLIP.weights.checkpoint import DERIVED
from decoding import Decoded, DecodingSettings, decode
from smile import Objective

PROMPT = ("a", "picture", "of")
BERT_VOCAB_SIZE = 30522
SMOOTHING = 0.1  # label smoothing of MLE, as in BLIP's configurations
TINY = {
    "vit": {"embed_dim": 32, "depth": 2, "num_heads": 4},
    "image_size": 48,
    "med_config": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
}


def our_captioner(tiny: bool, objective: Union[str, dict[str, float]] = "mle") -> BlipCaptioner:
    """BLIP-base at 384 pixels, or a tiny BLIP, with fixed random weights and a dummy vocabulary."""
    torch.manual_seed(0)
    words = [*SPECIAL_TOKENS, *PROMPT]
    words += [f"w{index}" for index in range(len(words), 60 if tiny else BERT_VOCAB_SIZE)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join(words) + "\n")
        sizes = TINY if tiny else {}
        return build_captioner(str(vocabulary), objective=Objective(objective, SMOOTHING), **sizes)


def their_captioner(ours: BlipCaptioner, share: bool = False) -> nn.Module:
    """transformers' BlipForConditionalGeneration with the same sizes, dropout and label smoothing.

    share: use our Parameter objects instead of copies, so that both models can be trained in turn.
    Raises ImportError if transformers has no BLIP.
    """
    from transformers import BlipConfig, BlipForConditionalGeneration

    config = BlipConfig(**hf_config(ours, ours.text_decoder.objective.label_smoothing))
    theirs = BlipForConditionalGeneration(config)
    state = to_hf_names(ours.state_dict(keep_vars=share))
    missing, unknown = theirs.load_state_dict(state, strict=False, assign=share)
    if unknown or not set(missing) <= set(DERIVED):
        raise ValueError(f"transformers' BLIP has other names: {unknown or missing}")
    theirs.tie_weights()  # restores what the state dict omits, see DERIVED
    return theirs


class NaiveCaptioner:
    """Our weights with the decoding of the original BLIP.

    The image's embeddings are repeated for each beam. Each step computes the cross-attention's keys
    and values again, and reorders the cached self-attention keys and values by beam. The
    decoder's attention is unfused, since torch had no fused kernel then.
    """

    def __init__(self, captioner: BlipCaptioner):
        self.captioner = captioner

    @torch.inference_mode()
    def generate_details(self, image: Tensor, settings: DecodingSettings) -> Decoded:
        """Token ids and scores of images (B, 3, S, S)."""
        step = NaiveStep(self.captioner.text_decoder, self.captioner.visual_encoder(image))
        words = self.captioner.tokenizer
        prompts = self.captioner.prompt_ids.to(image.device).expand(len(image), -1)
        return decode(step, prompts, words.end, words.pad, settings)


class NaiveStep:
    """The step function of `NaiveCaptioner`, see `decoding.Step`."""

    def __init__(self, decoder: TextDecoder, image_embeds: Tensor):
        self.decoder, self.image_embeds = decoder, image_embeds  # (B, P, width)
        self.past: list[KeysValues] = []
        self.rows_per_image = 1

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        images, count, new = tokens.shape
        start = 0
        if rows is not None:
            start = self.past[0][0].size(2)
            self.image_embeds = self.image_embeds[rows[:, 0] // self.rows_per_image]
            self.past = [(key[rows.flatten()], value[rows.flatten()]) for key, value in self.past]
        self.rows_per_image = count
        repeated = self.image_embeds.repeat_interleave(count, dim=0)
        causal = torch.ones(new, new, dtype=torch.bool, device=tokens.device).tril()
        hidden = self.decoder.bert["embeddings"](tokens.flatten(0, 1), start)
        past, self.past = self.past, []
        for index, layer in enumerate(self.decoder.layers):
            own = layer.attention.keys_values(hidden)
            if past:
                own = tuple(torch.cat(pair, dim=2) for pair in zip(past[index], own))
            self.past.append(own)
            hidden = _attention(layer.attention, hidden, own, causal if rows is None else None)
            image = layer.crossattention.keys_values(repeated)
            hidden = _attention(layer.crossattention, hidden, image)
            inner = nn.functional.gelu(layer.intermediate["dense"](hidden))
            hidden = layer.output(inner, hidden)
        return self.decoder.cls["predictions"](hidden[:, -1]).unflatten(0, (images, count))


def _attention(
    block: Attention, hidden: Tensor, keys_values: KeysValues, mask: Optional[Tensor] = None
) -> Tensor:
    key, value = keys_values
    query = block._split(block.self["query"](hidden))
    scores = query @ key.transpose(2, 3) / query.size(3) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    context = scores.softmax(-1) @ value
    return block.output(context.transpose(1, 2).reshape(hidden.shape), hidden)
