"""Counts and times requests and batches, and serves the numbers to Prometheus at /metrics."""

import time

from prometheus_client import Counter, Histogram, make_asgi_app

from app.service import CaptionService

# Buckets of the histograms.
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PHOTOS = (1, 2, 4, 8, 16, 32, 64)

# Prometheus keeps one time series per value of a label. Therefore no label has values that visitors
# choose: they could create any number of time series.
request_count = Counter(
    "smile_requests", "API requests by status; 499: the client disconnected", ["status"]
)
request_seconds = Histogram(
    "smile_request_seconds", "From an API request to its answer", buckets=SECONDS
)
caption_count = Counter("smile_captions", "Captions, for the API and the page")
batch_photos = Histogram("smile_batch_photos", "Photos captioned at once", buckets=PHOTOS)
batch_seconds = Histogram("smile_batch_seconds", "Time to caption a batch", buckets=SECONDS)


def count_batch(photos: int, seconds: float) -> None:
    caption_count.inc(photos)
    batch_photos.observe(photos)
    batch_seconds.observe(seconds)


class Metrics:
    """Middleware that answers /metrics, and counts and times the requests to `path`.

    path: the path of the API. service: the service whose batches are counted and timed.
    """

    def __init__(self, app, service: CaptionService, path: str):
        self.app, self.path, self.metrics_page = app, path, make_asgi_app()
        service.batcher.on_batch = count_batch

    async def __call__(self, scope, receive, send) -> None:
        path = scope["path"] if scope["type"] == "http" else None
        if path != self.path:
            await (self.metrics_page if path == "/metrics" else self.app)(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def send_and_keep_status(message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, send_and_keep_status)
        finally:
            request_count.labels(str(status)).inc()
            request_seconds.observe(time.monotonic() - started)
