"""Building and loading captioners, checkpoints, generation, scoring and likelihood.

After this package is imported, BLIP's reader of checkpoints also reads object stores.
"""

from BLIP.weights.download import FETCHERS, STORES
from captioning.models.checkpoints import local_copy

FETCHERS.update(dict.fromkeys(STORES, local_copy))
