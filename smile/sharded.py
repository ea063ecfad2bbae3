"""The fused linear loss with a head whose rows are sharded over processes (tensor parallelism).

It is imported only for DTensors.

No process has the whole weight or all logits of a position. Sums, maxima and the logits of single
tokens are reduced over the process group, so that all processes compute the same losses.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from smile.head import Head, Slope, is_distributed


class Shards(NamedTuple):
    """The processes that compute one loss together.

    first: the index of this process's first row of the head; None if each process has all rows.
    vocabulary: the number of rows of the whole head.
    """

    group: "dist.ProcessGroup"
    first: Optional[int]
    vocabulary: int

    def head(self, *args) -> Head:
        """The `Head` of these arguments."""
        return Head(*args) if self.first is None else ShardedHead(self, *args)

    def check(self, alternatives: Mapping[str, Any]) -> None:
        """Raise ValueError for an alternative that the shards cannot compute."""
        of_logits = [name for name, loss in alternatives.items() if loss.reads_logits]
        if of_logits and self.first is not None:
            raise ValueError(
                f"objective {of_logits[0]!r} reads all logits of a position, which a head whose "
                "rows are sharded never has; give it logits, or another objective"
            )

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
    """Convert hidden states, weight and bias to plain tensors, and return them with their `Shards`.

    weight: (V, D), plain, or a DTensor with Replicate() or Shard(0) on a one-dimensional mesh.
    Hidden states of any placement on this mesh are gathered. The bias is sharded like the weight.
    Gradients have the placements of the arguments. Raises ValueError for other placements.
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
    if is_distributed(hidden):
        hidden = hidden.redistribute(placements=[Replicate()]).to_local()
    group = mesh.get_group()
    if not is_distributed(weight) or weight.placements == (Replicate(),):
        weight = weight.to_local() if is_distributed(weight) else weight
        bias = bias.full_tensor() if is_distributed(bias) else bias
        return hidden, weight, bias, Shards(group, None, vocabulary)
    if weight.placements != (Shard(0),):
        raise ValueError(
            f"the head's weight is placed {weight.placements[0]}; shard its rows, Shard(0), as "
            "ColwiseParallel does, or give weight.full_tensor()"
        )
    share = -(-vocabulary // mesh.size())  # the last process may have fewer
    if bias is not None:
        if not is_distributed(bias):
            bias = DTensor.from_local(bias, mesh, [Replicate()], run_check=False)
        bias = bias.redistribute(placements=[Shard(0)]).to_local()
    return hidden, weight.to_local(), bias, Shards(group, dist.get_rank(group) * share, vocabulary)


class ShardedHead(Head):
    """A `Head` with this process's rows, weight (V', D) and bias (V',). Logits are (R, V').

    Hidden states and arguments of methods are the same in all processes of the group.
    """

    def __init__(self, shards: Shards, *args):
        super().__init__(*args)
        self.group, self.first, self.vocabulary = shards

    def _sum(self, tensor: Tensor) -> Tensor:
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
        return self._sum(logits.gather(1, own).masked_fill(others, 0))

    def without(self, logits: Tensor, excluded: Tensor, label: Tensor, target: Tensor) -> Tensor:
        own, others = self._own(excluded)
        change = torch.full(own.shape, float("-inf"), dtype=logits.dtype, device=logits.device)
        return logits.scatter_add(1, own, change.masked_fill(others | (excluded == label), 0))

    def softmax_(self, logits: Tensor) -> Tensor:
        largest = logits.amax(1, keepdim=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        total = self._sum(logits.sub_(largest).exp_().sum(1, keepdim=True))
        logits.div_(total)
        return largest + total.log()

    def add_(self, d_logits: Tensor, words: Tensor, values: Tensor) -> None:
        own, others = self._own(words)
        super().add_(d_logits, own, values.masked_fill(others, 0))

    def gradients(self) -> tuple[Optional[Tensor], ...]:
        """Sum the gradient of hidden states over processes. Gradients of rows stay local."""
        if self.d_hidden is not None:
            self._sum(self.d_hidden)
        return super().gradients()

    def _product_of(self, rows: Tensor, words: Tensor) -> Tensor:
        own, others = self._own(words)
        product = super()._product_of(rows, own).to(self.wide)
        return self._sum(product.masked_fill(others.unsqueeze(1), 0))

    def backward_of(self, rows: Tensor, words: Tensor, d_logits: Tensor, slope: Slope) -> None:
        own, others = self._own(words)
        super().backward_of(rows, own, d_logits.masked_fill(others.unsqueeze(1), 0), slope)
