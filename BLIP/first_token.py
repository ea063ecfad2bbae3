"""First-token shifting: a caption's first word is told apart from the same word later on."""

import torch
from torch import Tensor

from BLIP.tokenizer import CaptionTokenizer


class FirstTokenShift:
    """The first token of a caption, `word`, becomes the piece `##word`, and back.

    Under SMILE's softmax "a" at the start competes with the caption's other words, where a later
    "a" is among them; `##a` occurs once. A word without a piece stays as it is. Raises ValueError
    for a vocabulary without any. Source: SMILE (arXiv 2306.13460), tried there beside first-token
    MLE.
    """

    def __init__(self, tokenizer: CaptionTokenizer):
        ids = {tokenizer.token(number): number for number in range(len(tokenizer))}
        self.piece = torch.arange(len(tokenizer))  # (V,): what a first token becomes
        for word, number in ids.items():
            self.piece[number] = ids.get(f"##{word}", number)
        shifted = self.piece != torch.arange(len(self.piece))
        if not shifted.any():
            raise ValueError("first_token_shift: the vocabulary has no piece ##word of any word")
        self.word = torch.arange(len(tokenizer))
        self.word[self.piece[shifted]] = shifted.nonzero().squeeze(1)

    def apply(self, tokens: Tensor, start: int) -> Tensor:
        """Tokens (R, N) with that at `start` shifted, the prompt being so long."""
        tokens = tokens.clone()
        tokens[:, start] = self.piece[tokens[:, start]]
        return tokens

    def undo(self, ids: Tensor, start: int) -> Tensor:
        """Ids (L,) on the CPU with that at `start` a word again, so that it can be read."""
        ids = ids.clone()
        ids[start] = self.word[ids[start]]
        return ids
