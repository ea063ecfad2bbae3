"""Defines the caption decoder: BERT's layers of `med`, the language head and the objective.

Shapes are those of `med`; V is the vocabulary size.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from BLIP.med import bert_states, build_bert, causal_mask
from BLIP.sizes import MedConfig
from smile import Objective, ObjectiveOutput


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
        self.bias = self.decoder.bias  # the released checkpoints have both names

    def transform_hidden(self, hidden: Tensor) -> Tensor:
        """Compute the input of `self.decoder` from hidden states: (..., H) -> (..., H)."""
        return self.transform["LayerNorm"](F.gelu(self.transform["dense"](hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.transform_hidden(hidden))


class TextDecoder(nn.Module):
    """The caption decoder. Its forward returns the objective's output, not logits."""

    def __init__(
        self, config: MedConfig, vocab_size: int, encoder_width: int, objective: Objective
    ):
        super().__init__()
        self.bert = build_bert(config, vocab_size, encoder_width)
        predictions = Predictions(config, self.bert["embeddings"].word_embeddings)
        self.cls = nn.ModuleDict({"predictions": predictions})
        self.config = config
        self.objective = objective
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    @property
    def layers(self) -> nn.ModuleList:
        return self.bert["encoder"]["layer"]

    def hidden_states(self, tokens: Tensor, image_embeds: Tensor) -> Tensor:
        """Return the last layer's output, (R, n, H); see `bert_states`.

        Padding needs no mask: it follows the caption, and no token attends to later ones.
        """
        return bert_states(self.bert, tokens, causal_mask(tokens), image_embeds)

    def logits(self, tokens: Tensor, image_embeds: Tensor, start: int = 0) -> Tensor:
        """Return next-token logits (R, n - start, V) at the positions from `start` on."""
        return self.cls["predictions"](self.hidden_states(tokens, image_embeds)[:, start:])

    def forward(
        self, tokens: Tensor, image_embeds: Tensor, labels: Tensor, prompt_length: int = 1
    ) -> ObjectiveOutput:
        """Compute the objective on the labels (R, n) after the first `prompt_length` positions.

        The hidden state at a position predicts the label at the next position.
        """
        hidden = self.hidden_states(tokens, image_embeds)[:, prompt_length - 1 : -1]
        head = self.cls["predictions"]
        hidden = head.transform_hidden(hidden)
        labels = labels[:, prompt_length:]
        return self.objective.from_hidden(hidden, head.decoder.weight, head.decoder.bias, labels)
