"""How large the largest tensor is that something makes on its way."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestMade(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that is made under it."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(made) if isinstance(x, Tensor)]
        self.elements = max([self.elements, *(x.numel() for x in tensors)])
        return made
