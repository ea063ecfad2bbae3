"""The object store, for runs that tests disturb."""

from tests.captioning.conftest import s3, s3_server  # noqa: F401
