"""SMILE as a module, for code that keeps its loss as one."""

from torch import Tensor, nn

from smile.smile import smile_loss


class SmileLoss(nn.Module):
    """`smile_loss` with its settings; logits (B, N, V) and labels (B, N) as there."""

    def __init__(
        self, ignore_index: int = -100, first_token_mle: bool = False, reduction: str = "mean"
    ):
        super().__init__()
        self.ignore_index = ignore_index
        self.first_token_mle = first_token_mle
        self.reduction = reduction

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return smile_loss(logits, labels, self.ignore_index, self.first_token_mle, self.reduction)
