"""Defines BERT layers that attend to the caption and to the image.

Parameters have the names of the released BLIP checkpoints. Shapes: B images with k rows each
(captions or beams), grouped by image, so that R = B * k rows; n tokens per row; P image tokens; H
the width of the hidden states. Hidden states are (R, n, H). With `unpadding` they are (T, H), where
T is the number of non-padding tokens of all rows, rounded up (see `Unpadding`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, Literal, Optional, Union

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from BLIP.kernels.attention import attention
from BLIP.kernels.recompute_linear import recompute_linear
from BLIP.kernels.unpadding import Unpadding, build_unpadding
from BLIP.sizes import Sizes

# Keys and values, each (rows or images, heads, tokens, H / heads).
KeysValues = tuple[Tensor, Tensor]
REPOSITORY = Path(__file__).resolve().parent.parent


class MedConfig(Sizes):
    """Sizes of the text decoder, or of the text encoder of BLIP's filter, under BERT's names.

    The defaults are those of bert-base.
    """

    hidden_size: int = Field(768, gt=0)
    num_hidden_layers: int = Field(12, gt=0)
    num_attention_heads: int = Field(12, gt=0)
    intermediate_size: int = Field(3072, gt=0)
    max_position_embeddings: int = Field(512, gt=0)
    layer_norm_eps: float = Field(1e-12, ge=0)
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1)
    initializer_range: float = Field(0.02, ge=0)
    hidden_act: Literal["gelu"] = "gelu"

    @model_validator(mode="after")
    def _heads_divide_width(self):
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size must be a multiple of num_attention_heads")
        return self


# Keys of BERT's configuration that are ignored. The tokenizer determines vocab_size, the image
# encoder determines encoder_width, and the other keys do not vary between captioning decoders.
IGNORED_KEYS = {
    "architectures",
    "model_type",
    "type_vocab_size",
    "pad_token_id",
    "vocab_size",
    "encoder_width",
    "add_cross_attention",
}


def read_med_config(source: Union[str, Path, Mapping]) -> MedConfig:
    """Read sizes from a JSON file or a mapping. Missing keys get their default values.

    A relative path is searched first in the working directory, then in the repository. Raises a
    one-line ValueError for a file that cannot be read, an unknown key or an impossible value.
    """
    values = source
    if not isinstance(source, Mapping):
        try:
            source = source if Path(source).exists() else REPOSITORY / source
            values = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"med_config: cannot read {source}: {error}") from error
    if not isinstance(values, Mapping):
        raise ValueError(f"med_config: {source} is not a JSON object")
    sizes = {key: value for key, value in values.items() if key not in IGNORED_KEYS}
    return MedConfig.read("med_config", sizes)


class Embeddings(nn.Module):
    """Tokens (R, n) -> embeddings (R, n, H).

    start: the position of each row's first token, an int or a 0-d tensor. It is above 0 if earlier
    tokens are cached.
    """

    def __init__(self, config: MedConfig, vocab_size: int):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, config.hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        # A buffer, because the released checkpoints contain it.
        positions = torch.arange(config.max_position_embeddings).unsqueeze(0)
        self.register_buffer("position_ids", positions)

    def forward(self, tokens: Tensor, start: Union[int, Tensor] = 0) -> Tensor:
        positions = self.position_ids[:, : tokens.size(1)] + start
        embedded = self.word_embeddings(tokens) + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(embedded))


class AddAndNorm(nn.Module):
    """Computes LayerNorm(dropout(dense(activation(x))) + residual). width: x's last dimension."""

    def __init__(self, config: MedConfig, width: int):
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor, activation: Optional[Callable] = None) -> Tensor:
        return self.LayerNorm(self.dropout(recompute_linear(x, self.dense, activation)) + residual)


class Attention(nn.Module):
    """Attention to precomputed keys and values, then output projection, residual and LayerNorm.

    source_width: the width of the states from which keys and values are computed. These are the
    caption's hidden states or the image embeddings.
    """

    def __init__(self, config: MedConfig, source_width: int):
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.self = nn.ModuleDict(
            {
                "query": nn.Linear(config.hidden_size, config.hidden_size),
                "key": nn.Linear(source_width, config.hidden_size),
                "value": nn.Linear(source_width, config.hidden_size),
            }
        )
        self.output = AddAndNorm(config, config.hidden_size)

    def split_heads(self, x: Tensor) -> Tensor:
        """Return (rows or images, heads, n, H / heads) of x (rows or images, n, H)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def keys_values(self, source: Tensor, unpadding: Optional[Unpadding] = None) -> KeysValues:
        """Return the keys and values of `source`, (rows or images, tokens, width).

        With `unpadding`, source is (T, width); the result is padded.
        """
        key = recompute_linear(source, self.self["key"])
        value = recompute_linear(source, self.self["value"])
        if unpadding:
            key = unpadding.pad(key)
            value = unpadding.pad(value)
        return self.split_heads(key), self.split_heads(value)

    def forward(
        self,
        hidden: Tensor,
        keys_values: KeysValues,
        mask: Optional[Tensor] = None,
        is_causal: bool = False,
        unpadding: Optional[Unpadding] = None,
    ) -> Tensor:
        query = recompute_linear(hidden, self.self["query"])
        query = unpadding.pad(query) if unpadding else query
        # In cross-attention, the k rows of an image form one query of k * n tokens, so that the
        # image's keys need not be copied k times.
        query = self.split_heads(query.reshape(keys_values[0].size(0), -1, hidden.size(-1)))
        dropout = self.dropout if self.training else 0.0
        context = attention(query, *keys_values, mask, is_causal, dropout)
        context = context.transpose(1, 2).flatten(2)
        context = unpadding.unpad(context) if unpadding else context.reshape(hidden.shape)
        return self.output(context, hidden)


class Layer(nn.Module):
    """Self-attention, cross-attention and feed-forward, each with residual and LayerNorm."""

    def __init__(self, config: MedConfig, encoder_width: int):
        super().__init__()
        self.attention = Attention(config, config.hidden_size)
        self.crossattention = Attention(config, encoder_width)
        self.intermediate = nn.ModuleDict(
            {"dense": nn.Linear(config.hidden_size, config.intermediate_size)}
        )
        self.output = AddAndNorm(config, config.intermediate_size)

    def forward(
        self,
        hidden: Tensor,
        image_embeds: Optional[Tensor],
        mask: Tensor,
        unpadding: Optional[Unpadding] = None,
    ) -> Tensor:
        """Compute the keys and values of caption and image, then call `attend`.

        The caller does not compute them: FSDP gathers the layer's weights only in `forward`.
        """
        self_kv = self.attention.keys_values(hidden, unpadding)
        image_kv = None if image_embeds is None else self.crossattention.keys_values(image_embeds)
        return self.attend(hidden, self_kv, image_kv, mask, unpadding=unpadding)

    def attend(
        self,
        hidden: Tensor,
        self_kv: KeysValues,
        image_kv: Optional[KeysValues],
        mask: Optional[Tensor] = None,
        is_causal: bool = False,
        unpadding: Optional[Unpadding] = None,
    ) -> Tensor:
        """Return the layer's output, given its keys and values. Decoding steps call this directly.

        self_kv: keys and values of the caption. image_kv: keys and values of the image; None skips
        cross-attention. mask: bool, true where a token may attend in self-attention; it is
        broadcast to the shape of the attention scores.
        """
        hidden = self.attention(hidden, self_kv, mask, is_causal, unpadding)
        if image_kv is not None:
            hidden = self.crossattention(hidden, image_kv, unpadding=unpadding)
        return self.output(recompute_linear(hidden, self.intermediate["dense"]), hidden, F.gelu)


def build_bert(config: MedConfig, vocab_size: int, encoder_width: int) -> nn.ModuleDict:
    """Build embeddings and layers under BERT's names. `bert_states` computes their forward pass."""
    embeddings = Embeddings(config, vocab_size)
    layers = [Layer(config, encoder_width) for _ in range(config.num_hidden_layers)]
    encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
    return nn.ModuleDict({"embeddings": embeddings, "encoder": encoder})


def bert_states(
    bert: nn.ModuleDict,
    tokens: Tensor,
    attention_mask: Tensor,
    image_embeds: Optional[Tensor],
    is_causal: bool,
) -> Tensor:
    """Return the last layer's output, (R, n, H).

    tokens: int64 (R, n). attention_mask: int64 (R, n), 1 for a token and 0 for padding.
    image_embeds: (B, P, width); None skips cross-attention. is_causal: whether a token attends only
    to itself and to earlier tokens.
    """
    mask = attention_mask.bool()[:, None, None, :]  # (R, 1, 1, n)
    if is_causal:
        length = tokens.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        mask = causal & mask  # (R, 1, n, n)
    hidden = bert["embeddings"](tokens)
    unpadding = build_unpadding(attention_mask)
    hidden = unpadding.unpad(hidden) if unpadding else hidden
    for layer in bert["encoder"]["layer"]:
        hidden = layer(hidden, image_embeds, mask, unpadding)
    return unpadding.pad(hidden) if unpadding else hidden
