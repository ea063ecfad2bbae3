"""Computes the fused linear loss with a head that is sharded by rows (tensor parallelism).

Each process has some rows of the head. This module is imported only for DTensors.

No process has the whole weight or all logits of a position. Sums, maxima and the logits of single
tokens are reduced over the process group, so that all processes compute the same losses.
"""

import math
from typing import NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from smile.head import Head, is_distributed


class Shards(NamedTuple):
    """The processes that compute one loss together.

    first_row: the index of this process's first row in the whole head. vocabulary: the number of
    rows of the whole head.
    """

    group: "dist.ProcessGroup"
    first_row: int
    vocabulary: int

    def sync_samples(self, labels: Tensor, sampled: Optional[Tensor]) -> Optional[Tensor]:
        """Return the tokens (B, N, R) that the group's first process has sampled.

        sampled: this process's tokens for random subsetting; if None, returns None. Raises
        ValueError on all processes if their labels differ. Labels differ if FSDP shards the weight,
        because each process then has another part of the batch.
        """
        # The maxima of x and -x are opposite numbers only if all processes have the same x.
        order = torch.arange(1, labels.numel() + 1, device=labels.device)
        sizes = order.new_tensor(labels.shape)
        checksums = torch.cat([sizes, (order * labels.flatten()).sum().unsqueeze(0)])
        bounds = torch.stack([checksums, -checksums])
        dist.all_reduce(bounds, dist.ReduceOp.MAX, group=self.group)
        if (bounds[0] != -bounds[1]).any():
            raise ValueError(
                "the processes that shard the head have different labels; give all of them the "
                "same batch, or, if FSDP shards the head, call the objective in the forward of the "
                "module that FSDP wraps"
            )
        if sampled is not None:
            sampled = sampled.clone()
            dist.broadcast(sampled, dist.get_global_rank(self.group, 0), group=self.group)
        return sampled


class LocalTensors(NamedTuple):
    """The hidden states and this process's rows of the head, as plain tensors."""

    hidden: Tensor
    weight: Tensor
    bias: Optional[Tensor]
    shards: Shards


def to_local_tensors(hidden: Tensor, weight: Tensor, bias: Optional[Tensor]) -> LocalTensors:
    """Convert hidden states and a head that several processes share.

    weight: (V, D). Each argument is a plain tensor, or a DTensor of any placement. All DTensors
    must be on the same one-dimensional mesh. They are redistributed, which needs no communication
    for a weight with Shard(0). Gradients have the placements of the arguments. Raises ValueError
    for another mesh, and if the last process would have no rows of the head.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    arguments = {"hidden": hidden, "weight": weight, "bias": bias}
    meshes = {name: x.device_mesh for name, x in arguments.items() if is_distributed(x)}
    mesh = next(iter(meshes.values()))
    vocabulary = len(weight)
    for name, other in meshes.items():
        if other.ndim != 1 or other != mesh:
            raise ValueError(
                f"{name} is on {other}; the fused linear loss needs a single one-dimensional mesh, "
                "that of tensor parallelism, after FSDP has gathered its shards"
            )

    def to_local(x, placement):
        if x is None:
            return None
        if not is_distributed(x):
            x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        return x.redistribute(placements=[placement]).to_local()

    # As in torch, the number of rows per process is rounded up; the last process may have fewer.
    group = mesh.get_group()
    rows_per_process = math.ceil(vocabulary / mesh.size())
    if rows_per_process * (mesh.size() - 1) >= vocabulary:
        raise ValueError(
            f"a head of {vocabulary} tokens cannot be sharded over {mesh.size()} processes; use "
            "fewer processes"
        )
    return LocalTensors(
        to_local(hidden, Replicate()),
        to_local(weight, Shard(0)),
        to_local(bias, Shard(0)),
        Shards(group, dist.get_rank(group) * rows_per_process, vocabulary),
    )


class ShardedHead(Head):
    """A `Head` with only this process's V' rows: weight (V', D), bias (V',) and logits (R, V').

    Hidden states and arguments of methods are the same in all processes of the group, except for
    logits and their gradients.
    """

    def sum_shards(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the group, in place."""
        dist.all_reduce(tensor, group=self.shards.group)
        return tensor

    def _is_remote(self, tokens: Tensor) -> Tensor:
        local_ids = tokens - self.shards.first_row
        return (local_ids < 0) | (local_ids >= len(self.weight))

    def local_ids(self, tokens: Tensor) -> Tensor:
        return (tokens - self.shards.first_row).masked_fill(self._is_remote(tokens), 0)

    def keep_local(self, values: Tensor, tokens: Tensor) -> Tensor:
        return values.masked_fill(self._is_remote(tokens), 0)

    def softmax_(self, logits: Tensor) -> Tensor:
        largest = logits.amax(1, keepdim=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.shards.group)
        total = self.sum_shards(logits.sub_(largest).exp_().sum(1, keepdim=True))
        logits.div_(total)
        return largest + total.log()
