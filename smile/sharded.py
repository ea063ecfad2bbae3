"""The fused linear loss with a head whose rows are sharded over processes (tensor parallelism).

It is imported only for DTensors.

No process has the whole weight or all logits of a position. Sums, maxima and the logits of single
tokens are reduced over the process group, so that all processes compute the same losses.
"""

from typing import NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from smile.head import Head, Slope, is_distributed


class Shards(NamedTuple):
    """The processes that compute one loss together.

    first: the index of this process's first row of the head. vocabulary: the number of rows of the
    whole head.
    """

    group: "dist.ProcessGroup"
    first: int
    vocabulary: int

    def agree(self, labels: Tensor, words: Optional[Tensor]) -> Optional[Tensor]:
        """Let all processes of the group use the words (B, N, R) that the first one has sampled.

        words: for random subsetting, or None. Raises ValueError on all processes if their labels
        differ. They differ if FSDP has sharded the weight: then each process has a part of a batch.
        """
        order = torch.arange(1, labels.numel() + 1, device=labels.device)
        sizes = order.new_tensor(labels.shape)
        found = torch.cat([sizes, (order * labels.flatten()).sum().unsqueeze(0)])
        both = torch.stack([found, -found])
        dist.all_reduce(both, dist.ReduceOp.MAX, group=self.group)
        if (both[0] != -both[1]).any():
            raise ValueError(
                "the processes that shard the head have different labels; give all of them the "
                "same batch, or, if FSDP shards the head, call the objective in the forward of the "
                "module that FSDP wraps"
            )
        if words is not None:
            words = words.clone()
            dist.broadcast(words, dist.get_global_rank(self.group, 0), group=self.group)
        return words


def on_one_process(hidden: Tensor, weight: Tensor, bias: Optional[Tensor]):
    """Convert hidden states and this process's rows of the head to plain tensors.

    Returns hidden states, weight and bias with their `Shards`. weight: (V, D). Each argument is
    plain or a DTensor of any placement on one mesh of one dimension, and is redistributed. A weight
    with Shard(0) needs no communication. Gradients have the placements of the arguments. Raises
    ValueError for another mesh.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    given = {"hidden": hidden, "weight": weight, "bias": bias}
    meshes = {name: x.device_mesh for name, x in given.items() if is_distributed(x)}
    mesh, vocabulary = next(iter(meshes.values())), len(weight)
    for name, other in meshes.items():
        if other.ndim != 1 or other != mesh:
            raise ValueError(
                f"{name} is on {other}; the fused linear loss needs a single one-dimensional mesh, "
                "that of tensor parallelism, after FSDP has gathered its shards"
            )

    def placed(x: Optional[Tensor], placement) -> Optional[Tensor]:
        if x is None:
            return None
        if not is_distributed(x):
            x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        return x.redistribute(placements=[placement]).to_local()

    if -(-vocabulary // mesh.size()) * (mesh.size() - 1) >= vocabulary:
        raise ValueError(
            f"a head of {vocabulary} tokens cannot be sharded over {mesh.size()} processes; use "
            "fewer processes"
        )
    group, share = mesh.get_group(), -(-vocabulary // mesh.size())  # the last may have fewer
    shards = Shards(group, dist.get_rank(group) * share, vocabulary)
    return placed(hidden, Replicate()), placed(weight, Shard(0)), placed(bias, Shard(0)), shards


class ShardedHead(Head):
    """A `Head` with this process's rows, weight (V', D) and bias (V',). Logits are (R, V').

    Hidden states and arguments of methods are the same in all processes of the group.
    """

    def __init__(self, shards: Shards, *args):
        super().__init__(*args)
        self.group, self.first, self.vocabulary = shards

    def sum_shards(self, tensor: Tensor) -> Tensor:
        """Sum over the group, in place."""
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def _own(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """This process's rows of `words`, and a mask of words that other processes have.

        The rows of masked words are 0.
        """
        rows = words - self.first
        others = (rows < 0) | (rows >= len(self.weight))
        return rows.masked_fill(others, 0), others

    def pick(self, logits: Tensor, words: Tensor) -> Tensor:
        own, others = self._own(words)
        return self.sum_shards(logits.gather(1, own).masked_fill(others, 0))

    def without(self, logits: Tensor, excluded: Tensor, label: Tensor, target: Tensor) -> Tensor:
        own, others = self._own(excluded)
        change = torch.full(own.shape, float("-inf"), dtype=logits.dtype, device=logits.device)
        return logits.scatter_add(1, own, change.masked_fill(others | (excluded == label), 0))

    def softmax_(self, logits: Tensor) -> Tensor:
        largest = logits.amax(1, keepdim=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        total = self.sum_shards(logits.sub_(largest).exp_().sum(1, keepdim=True))
        logits.div_(total)
        return largest + total.log()

    def add_(self, d_logits: Tensor, words: Tensor, values: Tensor) -> None:
        own, others = self._own(words)
        super().add_(d_logits, own, values.masked_fill(others, 0))

    def _product_of(self, rows: Tensor, words: Tensor) -> Tensor:
        own, others = self._own(words)
        product = super()._product_of(rows, own).to(self.wide)
        return self.sum_shards(product.masked_fill(others.unsqueeze(1), 0))

    def backward_of(self, rows: Tensor, words: Tensor, d_logits: Tensor, slope: Slope) -> None:
        own, others = self._own(words)
        super().backward_of(rows, own, d_logits.masked_fill(others.unsqueeze(1), 0), slope)
