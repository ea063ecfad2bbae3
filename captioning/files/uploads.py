"""Old names, until captioning.bulk no longer needs them."""

from captioning.files.stores import (  # noqa: F401
    copy,
    put,
    remove,
    remove_folder,
    require_writable,
    upload,
)
from captioning.files.stores import create as open_to_write  # noqa: F401
