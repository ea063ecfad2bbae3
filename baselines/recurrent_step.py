"""A classic decoder's step function for `decoding`: one call a token, the state remembered."""

from typing import Optional

from torch import Tensor

from baselines.decoder import RecurrentDecoder


class RecurrentStep:
    """See `decoding.Step`. What is known of an image is kept once, for all its rows.

    unsaid: int64 (u,), ids that no caption may have, such as padding and <UNK>.
    """

    def __init__(self, decoder: RecurrentDecoder, annotations: Tensor, unsaid: Tensor):
        """annotations: (B, P, D)."""
        self.decoder = decoder
        self.memory, state = decoder.begin(annotations)
        self.state = tuple(part.unsqueeze(1) for part in state)  # (B, 1, H) each
        self.unsaid = unsaid.to(annotations.device)

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        if rows is not None:
            if len(rows) < len(self.state[0]):  # images have dropped out
                images = rows[:, 0] // self.state[0].size(1)
                self.memory = tuple(part[images] for part in self.memory)
            self.state = tuple(part.flatten(0, 1)[rows] for part in self.state)
        for embedded in self.decoder.embed(tokens).unbind(2):
            output, self.state, _ = self.decoder.advance(embedded, self.memory, self.state)
        return self.decoder.head(output).index_fill(-1, self.unsaid, float("-inf"))
