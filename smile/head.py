"""Computes logits and gradients of a linear language head, only for some positions or tokens."""

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from smile.labels import MAX_MASKED_LOGIT, at_least_float32
from smile.mixture import LossInputs

# Positions per chunk of logits, on a CPU and on other devices. Every chunk reads and writes the
# whole gradient of the weight. With smaller chunks this would take longer than the matmuls.
CHUNK_POSITIONS = {"cpu": 256, "cuda": 1024}
# How many elements to gather or convert at once. This many fit in a CPU's cache, or keep a GPU
# busy.
CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**24}
Slope = Union[Tensor, float]


def slices(count: int, step: int) -> Iterator[slice]:
    """Yield slices of length `step` (at least 1) that cover `count`. The last may be shorter."""
    step = max(step, 1)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def is_distributed(tensor: Optional[Tensor]) -> bool:
    """Return whether a tensor is a DTensor. DTensor is not imported, because the import is slow."""
    return hasattr(tensor, "placements")


def unwrap_replicated(logits: Tensor) -> Tensor:
    """Convert replicated logits to a plain tensor. Raises ValueError for sharded logits."""
    if not is_distributed(logits):
        return logits
    if not all(placement.is_replicate() for placement in logits.placements):
        raise ValueError(
            f"logits are placed {logits.placements}; give logits.full_tensor(), or give hidden "
            "states and the sharded head to from_hidden, which does not gather logits"
        )
    return logits.to_local()


class Transform(NamedTuple):
    """Maps z = hidden @ weight.T + bias to logits: scale * z, or cap * tanh(scale * z / cap)."""

    scale: float = 1.0
    softcap: Optional[float] = None

    def __call__(self, z: Tensor) -> tuple[Tensor, Slope]:
        """Return the logits and their slope d(logits)/dz, a tensor or a number. Overwrites `z`."""
        if self.scale != 1:
            z *= self.scale
        if self.softcap is None:
            return z, self.scale
        z.div_(self.softcap).tanh_()
        return z * self.softcap, z.square_().neg_().add_(1).mul_(self.scale)


class Head:
    """Computes logits of some positions or tokens, and accumulates gradients.

    hidden: (M, D), where M is the number of positions of the flattened batch; weight: (V, D); bias:
    (V,) or None. Logits are `transform` of `hidden @ weight.T + bias`, computed in `inputs.dtype`.
    needs_grad: whether hidden, weight and bias need gradients. `d_hidden`, `d_weight` and `d_bias`
    accumulate these gradients in float32 or wider; a gradient that is not needed is None. Methods
    return logits together with the slope of `Transform`, which `backward` needs.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        inputs: LossInputs,
        needs_grad: list[bool],
    ):
        self.transform = Transform(inputs.settings.scale, inputs.settings.softcap)
        self.dtype = inputs.dtype
        self.wide_dtype = torch.promote_types(self.dtype, torch.float32)
        self.hidden = hidden.to(self.dtype)
        self.weight = weight
        self.bias = None if bias is None else bias.to(self.dtype)
        self.shards = inputs.shards
        self.vocabulary = len(weight) if self.shards is None else self.shards.vocabulary
        self.has_grads = any(needs_grad)
        device = "cpu" if hidden.is_cpu else "cuda"
        self.chunk_positions = CHUNK_POSITIONS[device]
        self.chunk_elements = CHUNK_ELEMENTS[device]
        self.d_hidden, self.d_weight, self.d_bias = (
            x.new_zeros(x.shape, dtype=self.wide_dtype) if needed else None
            for x, needed in zip((hidden, weight, bias), needs_grad)
        )

    def logits(self, positions: Tensor) -> tuple[Tensor, Slope]:
        """Return logits (R, V) of `positions` (R,), float32 or wider, and their slope."""
        hidden = self.hidden[positions]
        if self.dtype == self.wide_dtype:
            return self.transform(F.linear(hidden, self._weight_rows(slice(None)), self.bias))
        logits = hidden.new_empty(len(positions), len(self.weight), dtype=self.wide_dtype)
        for tokens in self._slices():
            bias = None if self.bias is None else self.bias[tokens]
            logits[:, tokens] = F.linear(hidden, self._weight_rows(tokens), bias)
        return self.transform(logits)

    def backward(self, positions: Tensor, d_logits: Tensor, slope: Slope) -> None:
        """Accumulate gradients.

        d_logits: (R, V), the gradient of `logits(positions)`; may be overwritten. slope: the second
        result of `logits(positions)`.
        """
        d_logits = multiply_(d_logits, slope)
        if self.d_bias is not None:
            self.d_bias += d_logits.sum(0)
        hidden = self.hidden[positions]
        d_hidden = torch.zeros_like(hidden, dtype=self.wide_dtype)
        for tokens in self._slices():
            d_slice = d_logits[:, tokens].to(self.dtype)
            if self.d_hidden is not None:
                _add_product(d_hidden, d_slice, self._weight_rows(tokens))
            if self.d_weight is not None:
                _add_product(self.d_weight[tokens], d_slice.T, hidden)
        if self.d_hidden is not None:
            self.d_hidden.index_add_(0, positions, d_hidden)

    def gather_logits(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits (R, J) of `tokens` (R, J), gathered from logits (R, V)."""
        gathered = logits.gather(1, self.local_ids(tokens))
        return self.sum_shards(self.keep_local(gathered, tokens))

    def exclude(self, logits: Tensor, excluded: Tensor, label: Tensor) -> Tensor:
        """Return a copy of logits (R, V) with -inf for `excluded` tokens (R, J) except the label.

        label: (R, 1).
        """
        mask = logits.new_full(excluded.shape, float("-inf")).masked_fill(excluded == label, 0)
        ids = self.local_ids(excluded)
        return logits.scatter_add(1, ids, self.keep_local(mask, excluded))

    def mean(self, logits: Tensor) -> Tensor:
        """Return the mean logit (R, 1) over the tokens that are not masked."""
        if self.masked_tokens is not None:
            logits = logits.masked_fill(self.masked_tokens, 0)
        return self.sum_shards(logits.sum(1, keepdim=True)) / self.unmasked_count

    @cached_property
    def masked_tokens(self) -> Optional[Tensor]:
        """bool (V,): tokens that the bias masks at every position. None if no token can be masked.

        On a CPU it is also None if no token is masked. Other devices skip this check, because it
        would need a synchronisation.
        """
        if self.bias is None or self.transform.softcap is not None:
            return None
        masked = self.transform.scale * self.bias <= MAX_MASKED_LOGIT
        return None if masked.is_cpu and not self.sum_shards(masked.sum()) else masked

    @cached_property
    def unmasked_count(self) -> Union[Tensor, int]:
        """The number of tokens that are not masked. Label smoothing is over these tokens."""
        if self.masked_tokens is None:
            return self.vocabulary
        return self.vocabulary - self.sum_shards(self.masked_tokens.sum()).to(self.wide_dtype)

    def subtract_unmasked_(self, d_logits: Tensor, values: Tensor) -> None:
        """Subtract `values` (R, 1) from `d_logits` (R, V), except at masked tokens."""
        if self.masked_tokens is None:
            d_logits -= values
        else:
            d_logits.addcmul_(values, (~self.masked_tokens).to(d_logits.dtype), value=-1)

    # `smile.sharded` overrides the next three methods. Here one process has the whole head.

    def sum_shards(self, tensor: Tensor) -> Tensor:
        """Return the sum over the processes that share the head."""
        return tensor

    def local_ids(self, tokens: Tensor) -> Tensor:
        """Return each token's row in this process's head; 0 if another process has the token."""
        return tokens

    def keep_local(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Return `values`, with 0 where another process has the row of the token in `tokens`."""
        return values

    def softmax_(self, logits: Tensor) -> Tensor:
        """Overwrite logits (R, V) with probabilities. Return the logsumexp (R, 1) of each row."""
        # The largest probability is exp(largest - logsumexp).
        largest = logits.amax(1, keepdim=True)
        torch.softmax(logits, 1, out=logits)
        return largest - logits.amax(1, keepdim=True).log()

    def scatter_add_(self, d_logits: Tensor, tokens: Tensor, values: Tensor) -> None:
        """Add `values` (R, J) to `d_logits` (R, V) at `tokens` (R, J)."""
        d_logits.scatter_add_(1, self.local_ids(tokens), self.keep_local(values, tokens))

    def _slices(self) -> Iterator[slice]:
        """Return one slice of the whole vocabulary, or several if the dtype is half precision.

        Several slices keep the temporary copies of half-precision values small.
        """
        if self.dtype == self.wide_dtype:
            return slices(len(self.weight), len(self.weight))
        return slices(len(self.weight), self.chunk_elements // self.weight.size(1))

    def _weight_rows(self, tokens: Union[slice, Tensor]) -> Tensor:
        """Return the rows of the weight for `tokens`, in `dtype`."""
        return self.weight[tokens].to(self.dtype)

    def logits_grouped(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Slope]:
        """Return logits (G, R, J) of hidden states (G, R, D) for tokens (G, J), and their slope."""
        ids = self.local_ids(tokens)
        weight = self._weight_rows(ids).transpose(1, 2)  # (G, D, J)
        if self.bias is None:
            z = torch.bmm(hidden, weight)
        else:
            z = torch.baddbmm(self.bias[ids].unsqueeze(1), hidden, weight)
        z = self.keep_local(at_least_float32(z), tokens.unsqueeze(1))
        return self.transform(self.sum_shards(z))

    def backward_grouped(
        self, positions: Tensor, hidden: Tensor, tokens: Tensor, d_logits: Tensor, slope: Slope
    ) -> None:
        """Accumulate gradients, as `backward` does, for `logits_grouped(hidden, tokens)`.

        positions: (G, R), those of `hidden`. d_logits: (G, R, J), may be overwritten.
        """
        d_logits = self.keep_local(multiply_(d_logits, slope), tokens.unsqueeze(1))
        tokens = self.local_ids(tokens)
        if self.d_bias is not None:
            self.d_bias.index_add_(0, tokens.flatten(), d_logits.sum(1).flatten())
        d_logits = d_logits.to(self.dtype)
        if self.d_hidden is not None:
            d_hidden = torch.bmm(d_logits, self._weight_rows(tokens)).to(self.wide_dtype)
            self.d_hidden.index_add_(0, positions.flatten(), d_hidden.flatten(0, 1))
        if self.d_weight is not None:
            d_weight = torch.bmm(d_logits.transpose(1, 2), hidden).to(self.wide_dtype)
            self.d_weight.index_add_(0, tokens.flatten(), d_weight.flatten(0, 1))


def multiply_(d_logits: Tensor, slope: Slope) -> Tensor:
    """Multiply `d_logits` by `slope`, in place."""
    if isinstance(slope, Tensor) or slope != 1:
        d_logits *= slope
    return d_logits


def _add_product(to: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `to`, in place. `addmm_` cannot add a half-precision product to a wider `to`."""
    if a.dtype == to.dtype:
        to.addmm_(a, b)
    else:
        to += a @ b


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype in which a linear layer computes: autocast's, or the dtype of `hidden`."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype


@contextlib.contextmanager
def enable_autograd():
    """Turn autograd on, also inside a custom operator, where torch turns autograd off.

    Hooks for saved tensors, such as the hooks of activation checkpointing, are not applied, because
    the saved tensors are used at once.
    """
    identity = (lambda x: x, lambda x: x)
    with torch.inference_mode(False), torch.autograd.graph.saved_tensors_hooks(*identity):
        yield
