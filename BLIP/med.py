"""The text decoder: BERT layers that look at the caption so far and at the image.

Parameter names are those of the released BLIP checkpoints. Shapes: R rows (captions or beams) are
grouped by image, R = B * k; n tokens a row; P places of the image; H width; V vocabulary.
"""

from typing import Callable, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from BLIP.attention import attention
from BLIP.lean_linear import lean_linear
from BLIP.med_config import MedConfig
from smile import Objective, ObjectiveOutput

KeysValues = tuple[Tensor, Tensor]  # each (rows or images, heads, places, H / heads)


class Embeddings(nn.Module):
    """Tokens (R, n) from position `start` on, a number or int64 () -> (R, n, H)."""

    def __init__(self, config: MedConfig, vocab_size: int):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, config.hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        # In the released files; the positions are simply counted.
        positions = torch.arange(config.max_position_embeddings).unsqueeze(0)
        self.register_buffer("position_ids", positions)

    def forward(self, tokens: Tensor, start: Union[int, Tensor] = 0) -> Tensor:
        positions = self.position_ids[:, : tokens.size(1)] + start
        embedded = self.word_embeddings(tokens) + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(embedded))


class AddAndNorm(nn.Module):
    """LayerNorm(dropout(dense(before(x))) + residual)."""

    def __init__(self, config: MedConfig, width: int):
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor, before: Optional[Callable] = None) -> Tensor:
        return self.LayerNorm(self.dropout(lean_linear(x, self.dense, before)) + residual)


class Attention(nn.Module):
    """Attention of rows (R, n, H) over given keys and values, with its output block."""

    def __init__(self, config: MedConfig, source_width: int):
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        projections = {"query": config.hidden_size, "key": source_width, "value": source_width}
        self.self = nn.ModuleDict(
            {name: nn.Linear(width, config.hidden_size) for name, width in projections.items()}
        )
        self.output = AddAndNorm(config, config.hidden_size)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # (., heads, n, H / heads)

    def keys_values(self, source: Tensor) -> KeysValues:
        """source (rows or images, places, width)."""
        key, value = (lean_linear(source, self.self[name]) for name in ("key", "value"))
        return self._split(key), self._split(value)

    def forward(
        self,
        hidden: Tensor,
        keys_values: KeysValues,
        mask: Optional[Tensor] = None,
        is_causal: bool = False,
    ) -> Tensor:
        # The k rows of an image are one long query over its keys, which are thus not copied.
        groups = keys_values[0].size(0)
        query = lean_linear(hidden, self.self["query"])
        query = self._split(query.reshape(groups, -1, hidden.size(2)))
        dropout = self.dropout if self.training else 0.0
        context = attention(query, *keys_values, mask, is_causal, dropout)
        return self.output(context.transpose(1, 2).reshape(hidden.shape), hidden)


class Layer(nn.Module):
    """Self-attention, cross-attention and feed-forward, each normalised after its residual."""

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
        own: KeysValues,
        image: KeysValues,
        mask: Optional[Tensor] = None,
        is_causal: bool = False,
    ) -> Tensor:
        hidden = self.attention(hidden, own, mask, is_causal)
        hidden = self.crossattention(hidden, image)
        return self.output(lean_linear(hidden, self.intermediate["dense"]), hidden, F.gelu)


class Predictions(nn.Module):
    """The language head, tied to the word embedding: hidden (..., H) -> logits (..., V)."""

    def __init__(self, config: MedConfig, word_embeddings: nn.Embedding):
        super().__init__()
        self.transform = nn.ModuleDict(
            {
                "dense": nn.Linear(config.hidden_size, config.hidden_size),
                "LayerNorm": nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps),
            }
        )
        self.decoder = nn.Linear(config.hidden_size, word_embeddings.num_embeddings)
        self.decoder.weight = word_embeddings.weight
        self.bias = self.decoder.bias

    def transformed(self, hidden: Tensor) -> Tensor:
        """What the decoder turns into logits, (..., H) as `hidden` is."""
        return self.transform["LayerNorm"](F.gelu(self.transform["dense"](hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.transformed(hidden))


class TextDecoder(nn.Module):
    """The caption decoder; its forward is where the objective comes in."""

    def __init__(
        self, config: MedConfig, vocab_size: int, encoder_width: int, objective: Objective
    ):
        super().__init__()
        embeddings = Embeddings(config, vocab_size)
        layers = [Layer(config, encoder_width) for _ in range(config.num_hidden_layers)]
        self.bert = nn.ModuleDict(
            {"embeddings": embeddings, "encoder": nn.ModuleDict({"layer": nn.ModuleList(layers)})}
        )
        predictions = Predictions(config, embeddings.word_embeddings)
        self.cls = nn.ModuleDict({"predictions": predictions})
        self.config = config
        self.objective = objective
        self._initialise(config.initializer_range)

    def _initialise(self, std: float) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    @property
    def max_length(self) -> int:
        """How many tokens a row can have."""
        return self.config.max_position_embeddings

    @property
    def layers(self) -> nn.ModuleList:
        return self.bert["encoder"]["layer"]

    def hidden_states(self, tokens: Tensor, attention_mask: Tensor, image_embeds: Tensor) -> Tensor:
        """What the last layer makes of each token: (R, n, H).

        tokens, attention_mask (1 real, 0 padding): int64 (R, n); image_embeds: (B, P, width).
        """
        length = tokens.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        mask = causal & attention_mask.bool()[:, None, None, :]  # (R, 1, n, n)
        hidden = self.bert["embeddings"](tokens)
        for layer in self.layers:
            own = layer.attention.keys_values(hidden)
            hidden = layer(hidden, own, layer.crossattention.keys_values(image_embeds), mask)
        return hidden

    def logits(
        self, tokens: Tensor, attention_mask: Tensor, image_embeds: Tensor, start: int = 0
    ) -> Tensor:
        """Logits (R, n - start, V) of the tokens that follow positions `start` to n - 1.

        The arguments are those of `hidden_states`.
        """
        hidden = self.hidden_states(tokens, attention_mask, image_embeds)
        return self.cls["predictions"](hidden[:, start:])

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor,
        image_embeds: Tensor,
        labels: Tensor,
        prompt_length: int = 1,
    ) -> ObjectiveOutput:
        """The objective over labels (R, n), of which none is in the first `prompt_length`."""
        hidden = self.hidden_states(tokens, attention_mask, image_embeds)
        head = self.cls["predictions"]
        hidden = head.transformed(hidden[:, prompt_length - 1 : -1])
        labels = labels[:, prompt_length:]
        return self.objective.from_hidden(hidden, head.decoder.weight, head.decoder.bias, labels)
