"""Defines BERT's layers, which attend to the caption and to the image.

Parameters have the names of the released BLIP checkpoints. Shapes: B images with k rows each
(captions or beams), grouped by image, so that R = B * k rows; n tokens per row; P image tokens; H
the width of the hidden states.
"""

import math
from typing import Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from BLIP.sizes import MedConfig

# Keys and values, each (rows or images, heads, tokens, H / heads).
KeysValues = tuple[Tensor, Tensor]


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
    """Computes LayerNorm(dropout(dense(x)) + residual). width: x's last dimension."""

    def __init__(self, config: MedConfig, width: int):
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


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

    def keys_values(self, source: Tensor) -> KeysValues:
        """Return the keys and values of `source`, (rows or images, tokens, width)."""
        return self.split_heads(self.self["key"](source)), self.split_heads(
            self.self["value"](source)
        )

    def forward(
        self, hidden: Tensor, keys_values: KeysValues, mask: Optional[Tensor] = None
    ) -> Tensor:
        key, value = keys_values
        # In cross-attention, the k rows of an image form one query of k * n tokens, so that the
        # image's keys need not be copied k times.
        query = self.self["query"](hidden).reshape(key.size(0), -1, hidden.size(-1))
        query = self.split_heads(query).to(key.dtype)
        dropout = self.dropout if self.training else 0.0
        if key.is_cpu and key.dtype != torch.float32 and torch.is_grad_enabled():
            # The backward pass of torch's fused attention is slow on a CPU in 16 bits.
            scores = query @ key.mT / math.sqrt(query.size(3))  # (rows or images, heads, k * n, P)
            scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
            context = F.dropout(scores.softmax(-1), dropout) @ value
        else:
            context = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        return self.output(context.transpose(1, 2).reshape(hidden.shape), hidden)


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

    def forward(self, hidden: Tensor, image_embeds: Optional[Tensor], mask: Tensor) -> Tensor:
        """Compute the keys and values of caption and image, then call `attend`.

        The caller does not compute them: FSDP gathers the layer's weights only in `forward`.
        """
        image_kv = None if image_embeds is None else self.crossattention.keys_values(image_embeds)
        return self.attend(hidden, self.attention.keys_values(hidden), image_kv, mask)

    def attend(
        self,
        hidden: Tensor,
        self_kv: KeysValues,
        image_kv: Optional[KeysValues],
        mask: Tensor,
    ) -> Tensor:
        """Return the layer's output, given its keys and values. Decoding steps call this directly.

        - self_kv: keys and values of the caption
        - image_kv: keys and values of the image; None skips cross-attention
        - mask: bool, true where a token may attend in self-attention; it is broadcast to the shape
          of the attention scores
        """
        hidden = self.attention(hidden, self_kv, mask)
        if image_kv is not None:
            hidden = self.crossattention(hidden, image_kv)
        return self.output(F.gelu(self.intermediate["dense"](hidden)), hidden)


def build_bert(config: MedConfig, vocab_size: int, encoder_width: int) -> nn.ModuleDict:
    """Build embeddings and layers under BERT's names. `bert_states` computes their forward pass."""
    embeddings = Embeddings(config, vocab_size)
    layers = [Layer(config, encoder_width) for _ in range(config.num_hidden_layers)]
    encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
    return nn.ModuleDict({"embeddings": embeddings, "encoder": encoder})


def causal_mask(tokens: Tensor) -> Tensor:
    """Return bool (n, n), true where a token of a row may attend: to itself and earlier tokens.

    tokens: (R, n).
    """
    length = tokens.size(1)
    return torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()


def bert_states(
    bert: nn.ModuleDict, tokens: Tensor, mask: Tensor, image_embeds: Optional[Tensor]
) -> Tensor:
    """Return the last layer's output, (R, n, H).

    - tokens: int64 (R, n)
    - mask: bool, true where a token may attend; it is broadcast to (R, heads, n, n)
    - image_embeds: (B, P, width); None skips cross-attention
    """
    hidden = bert["embeddings"](tokens)
    for layer in bert["encoder"]["layer"]:
        hidden = layer(hidden, image_embeds, mask)
    return hidden
