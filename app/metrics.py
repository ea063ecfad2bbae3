"""GET /metrics: counts and durations of requests and batches, for Prometheus."""

import time

from app.service import CaptionService

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PHOTOS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Middleware that answers GET /metrics, and counts the requests to `path`.

    The only Prometheus label is the status, so visitors cannot create further time series.
    """

    def __init__(self, app, service: CaptionService, path: str):
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Histogram,
            ProcessCollector,
            make_asgi_app,
        )

        self.app, self.path = app, path
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        shared = {"registry": self.registry}
        self.requests = Counter(
            "smile_requests", "Requests to the API, by status; 499: hung up", ["status"], **shared
        )
        self.request_seconds = Histogram(
            "smile_request_seconds", "From request to answer", buckets=SECONDS, **shared
        )
        self.captions = Counter("smile_captions", "Captions, including the page's", **shared)
        self.batch_photos = Histogram(
            "smile_batch_photos", "Photos captioned at once", buckets=PHOTOS, **shared
        )
        self.batch_seconds = Histogram(
            "smile_batch_seconds", "To caption a batch", buckets=SECONDS, **shared
        )
        self.page = make_asgi_app(self.registry)
        service.batcher.on_batch = self.count_batch

    def count_batch(self, photos: int, seconds: float) -> None:
        self.captions.inc(photos)
        self.batch_photos.observe(photos)
        self.batch_seconds.observe(seconds)

    async def __call__(self, scope, receive, send) -> None:
        path = scope["path"] if scope["type"] == "http" else None
        if path != self.path:
            await (self.page if path == "/metrics" else self.app)(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def sent(message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            self.requests.labels(str(status)).inc()
            self.request_seconds.observe(time.monotonic() - started)
