"""A linear language head that computes logits and gradients for some positions or tokens only."""

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from smile.labels import RULED_OUT, at_least_float32

# Positions per chunk of logits, on a CPU and on other devices. Each chunk reads and writes the
# whole gradient of the weight. In smaller chunks that would take longer than the matmuls.
POSITIONS = {"cpu": 256, "cuda": 1024}
# Elements to gather or convert at once. They fit in a CPU's cache, or keep a GPU busy.
ELEMENTS = {"cpu": 2**20, "cuda": 2**24}
Slope = Union[Tensor, float]


def slices(count: int, step: int) -> Iterator[slice]:
    """Slices of length `step` (at least 1) that cover `count`. The last one may be shorter."""
    step = max(step, 1)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def is_distributed(tensor: Optional[Tensor]) -> bool:
    """Whether a tensor is a DTensor. This avoids the import of DTensor, which is slow."""
    return hasattr(tensor, "placements")


def whole(logits: Tensor) -> Tensor:
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
    """Computes logits of some rows or tokens, and accumulates gradients of hidden, weight and bias.

    hidden: (M, D); weight: (V, D); bias: (V,) or None. Logits are `transform` of
    `hidden @ weight.T + bias`, computed in `dtype`. wanted: which of the three gradients to
    accumulate; the others are None. Each gradient is accumulated in one buffer, in float32 or
    wider. Logits are returned with their slope, which `backward` needs.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        transform: Transform,
        dtype: torch.dtype,
        wanted: tuple[bool, bool, bool],
    ):
        self.transform = transform
        self.dtype = dtype
        self.hidden, self.weight = hidden.to(self.dtype), weight
        self.bias = None if bias is None else bias.to(self.dtype)
        self.wide = torch.promote_types(self.dtype, torch.float32)
        self.vocabulary = len(weight)
        self.differentiate = any(wanted)
        self.elements = ELEMENTS["cpu" if hidden.is_cpu else "cuda"]
        self.d_hidden, self.d_weight, self.d_bias = (
            x.new_zeros(x.shape, dtype=self.wide) if want else None
            for x, want in zip((hidden, weight, bias), wanted)
        )

    def logits(self, rows: Tensor) -> tuple[Tensor, Slope]:
        """Logits (R, V) of `rows` (R,), float32 or wider, and their slope."""
        hidden = self.hidden[rows]
        if self.dtype == self.wide:
            return self.transform(F.linear(hidden, self._rows(slice(None)), self.bias))
        logits = hidden.new_empty(len(rows), len(self.weight), dtype=self.wide)
        for words in self._slices():
            bias = None if self.bias is None else self.bias[words]
            logits[:, words] = F.linear(hidden, self._rows(words), bias)
        return self.transform(logits)

    def backward(self, rows: Tensor, d_logits: Tensor, slope: Slope) -> None:
        """Accumulate gradients. d_logits: (R, V), the gradient of `logits(rows)`; distinct rows."""
        d_logits = times(d_logits, slope)
        if self.d_bias is not None:
            self.d_bias += d_logits.sum(0)
        hidden = self.hidden[rows]
        d_hidden = torch.zeros_like(hidden, dtype=self.wide)
        for words in self._slices():
            d_words = d_logits[:, words].to(self.dtype)
            if self.d_hidden is not None:
                _add_product(d_hidden, d_words, self._rows(words))
            if self.d_weight is not None:
                _add_product(self.d_weight[words], d_words.T, hidden)
        if self.d_hidden is not None:
            self.d_hidden.index_add_(0, rows, d_hidden)

    def pick(self, logits: Tensor, words: Tensor) -> Tensor:
        """The logits (R, J) of `words` (R, J), picked from logits (R, V)."""
        return logits.gather(1, words)

    def without(self, logits: Tensor, excluded: Tensor, label: Tensor, target: Tensor) -> Tensor:
        """A copy of logits (R, V) with -inf for `excluded` tokens (R, J), except the label (R, 1).

        target: (R, 1), the logit of the label.
        """
        return logits.scatter(1, excluded, float("-inf")).scatter_(1, label, target)

    def mean(self, logits: Tensor) -> Tensor:
        """The mean logit (R, 1) over the tokens that are not ruled out."""
        if self.ruled_out is not None:
            logits = logits.masked_fill(self.ruled_out, 0)
        return self.sum_shards(logits.sum(1, keepdim=True)) / self.possible

    @cached_property
    def ruled_out(self) -> Optional[Tensor]:
        """bool (V,): tokens that the bias masks at every position.

        On a CPU, None if there are none. On other devices that check would need a synchronisation.
        """
        if self.bias is None or self.transform.softcap is not None:
            return None
        masked = self.transform.scale * self.bias <= RULED_OUT
        return None if masked.is_cpu and not self.sum_shards(masked.sum()) else masked

    @cached_property
    def possible(self) -> Union[Tensor, int]:
        """The number of tokens that are not ruled out. Label smoothing is over these tokens."""
        if self.ruled_out is None:
            return self.vocabulary
        return self.vocabulary - self.sum_shards(self.ruled_out.sum()).to(self.wide)

    def subtract_(self, d_logits: Tensor, values: Tensor) -> None:
        """Subtract `values` (R, 1) from `d_logits` (R, V), except at tokens that are ruled out."""
        if self.ruled_out is None:
            d_logits -= values
        else:
            d_logits.addcmul_(values, (~self.ruled_out).to(d_logits.dtype), value=-1)

    def sum_shards(self, tensor: Tensor) -> Tensor:
        """The sum over the processes that share the head. Here there is only one."""
        return tensor

    def softmax_(self, logits: Tensor) -> Tensor:
        """Overwrite logits (R, V) with probabilities. Return the logsumexp (R, 1) of each row."""
        largest = logits.amax(1, keepdim=True)
        torch.softmax(logits, 1, out=logits)
        return largest - logits.amax(1, keepdim=True).log()

    def add_(self, d_logits: Tensor, words: Tensor, values: Tensor) -> None:
        """Add `values` (R, J) to `d_logits` (R, V) at `words` (R, J)."""
        d_logits.scatter_add_(1, words, values)

    def _slices(self) -> Iterator[slice]:
        """Slices of the vocabulary, so that half precision is not converted all at once."""
        if self.dtype == self.wide:
            return slices(len(self.weight), len(self.weight))
        return slices(len(self.weight), self.elements // self.weight.size(1))

    def _rows(self, words: Union[slice, Tensor]) -> Tensor:
        """Rows of the weight, in the dtype of logits."""
        return self.weight[words].to(self.dtype)

    def logits_of(self, rows: Tensor, words: Tensor) -> tuple[Tensor, Slope]:
        """Logits (G, R, J) of `rows` (G, R) for `words` (G, J), by group, and their slope."""
        return self.transform(at_least_float32(self._product_of(rows, words)))

    def _product_of(self, rows: Tensor, words: Tensor) -> Tensor:
        weight = self._rows(words).transpose(1, 2)  # (G, D, J)
        if self.bias is None:
            return torch.bmm(self.hidden[rows], weight)
        return torch.baddbmm(self.bias[words].unsqueeze(1), self.hidden[rows], weight)

    def backward_of(self, rows: Tensor, words: Tensor, d_logits: Tensor, slope: Slope) -> None:
        """Accumulate gradients. d_logits: (G, R, J), the gradient of `logits_of(rows, words)`."""
        d_logits = times(d_logits, slope)
        if self.d_bias is not None:
            self.d_bias.index_add_(0, words.flatten(), d_logits.sum(1).flatten())
        d_logits = d_logits.to(self.dtype)
        if self.d_hidden is not None:
            d_hidden = torch.bmm(d_logits, self._rows(words)).to(self.wide)
            self.d_hidden.index_add_(0, rows.flatten(), d_hidden.flatten(0, 1))
        if self.d_weight is not None:
            d_weight = torch.bmm(d_logits.transpose(1, 2), self.hidden[rows]).to(self.wide)
            self.d_weight.index_add_(0, words.flatten(), d_weight.flatten(0, 1))


def times(d_logits: Tensor, slope: Slope) -> Tensor:
    """Multiply `d_logits` by `slope`, in place."""
    if isinstance(slope, Tensor) or slope != 1:
        d_logits *= slope
    return d_logits


def _add_product(to: Tensor, a: Tensor, b: Tensor) -> None:
    """to += a @ b, in place. torch has no half-precision matmul that adds to a wider tensor."""
    if a.dtype == to.dtype:
        to.addmm_(a, b)
    else:
        to += a @ b


def computed_in(hidden: Tensor) -> torch.dtype:
    """The dtype of a linear layer's output for this input. Under autocast it is autocast's."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype


@contextlib.contextmanager
def recorded():
    """Turn autograd on, also inside a custom operator, where it is off.

    Hooks for saved tensors, such as activation checkpointing's, are not applied: the saved tensors
    are used at once.
    """
    identity = (lambda x: x, lambda x: x)
    with torch.inference_mode(False), torch.autograd.graph.saved_tensors_hooks(*identity):
        yield
