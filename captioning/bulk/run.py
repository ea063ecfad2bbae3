"""One call from its plan to its summary, on every process."""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Optional

from captioning.bulk.merging import merge, printable, write_parquet
from captioning.bulk.model import Captioning
from captioning.bulk.planning import Tally, make_plan
from captioning.bulk.request import Request
from captioning.bulk.shards import Plan, find, parts_of, remove_plan
from captioning.bulk.work import Ranks, caption_shards, done_before
from captioning.files.reading import read_lines
from captioning.files.tars import is_tars
from captioning.runtime import distributed, stopping
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress, say

EXAMPLES = 3


class BulkCaptioning:
    """settings: what makes captions what they are, by which an unfinished run is recognised;
    load: makes the captioner, if one is needed at all; restart: drop an unfinished run."""

    def __init__(
        self,
        request: Request,
        settings: dict[str, Any],
        load: Callable[[], Captioning],
        restart: bool,
    ):
        self.request, self.settings, self.load, self.restart = request, settings, load, restart
        self.model: Optional[Captioning] = None
        self.tally = Tally()
        self.rounds = 0
        self.captioned = self.failed = 0
        self.images, self.seconds = 0, 0.0  # of this call

    def run(self) -> None:
        """Raises UserError, and Stopped when asked to stop: all that is done is kept."""
        before = 0
        with ExitStack() as held:
            self._on_main(lambda: self._begin(held))
            # Rank 0 alone looks: another machine that looked too early would remember no plan.
            planned = distributed.is_main() and find(self.request.parts) is not None
            resumed = distributed.broadcast_from_main(planned)
            if resumed:
                self._finish()
                before, self.failed = self.captioned, 0  # which the next plan counts again
            # Of a plan that overwrites or appends nothing is left to do when it is finished.
            if not resumed or self.request.keeps():
                self._on_main(self._plan)
                self.tally.skipped -= before
                self._finish()
            self._on_main(self._end)

    def _on_main(self, do: Callable[[], None]) -> None:
        distributed.main_alone(disks_told_of(self.request)(do))

    def _begin(self, held: ExitStack) -> None:
        self.request.check_outputs()
        held.enter_context(self.request.alone())
        plan = find(self.request.parts)
        if plan is None:
            return
        if self.restart:
            remove_plan(self.request.parts)
            return
        before = plan.header["settings"]
        for name in sorted({*before, *self.settings}):
            was, now = before.get(name), self.settings.get(name)
            if was != now:
                raise UserError(
                    f"{self.request.out}: an unfinished run had {name} {was!r}, and now it is "
                    f"{now!r}: finish it as it was, or drop it with --restart"
                )
        say(f"going on with {self.request.out}")

    def _plan(self) -> None:
        plan, self.tally = make_plan(self.request, self.settings)
        tally = self.tally
        others = tally.checkpoints - {self.settings["checkpoint"]}
        if others and tally.skipped:
            say(
                f"{self.request.out} has captions of {', '.join(sorted(others))}, which stay; "
                "--existing overwrite makes them anew"
            )
        if self.request.verify:
            say(
                f"verify: {tally.skipped} have a caption, {plan.header['entries']} "
                f"{'tars have gaps' if is_tars(self.request.source) else 'have none'}, "
                f"{tally.failed} failed before; {tally.damaged} damaged lines, {tally.repeated} "
                f"repeated, {len(tally.no_sidecar)} sidecars were missing"
            )

    def _finish(self) -> None:
        """Caption what is left of the plan, on all processes, and put it together."""
        left = None
        if distributed.is_main():
            plan = find(self.request.parts)
            parts = parts_of(self.request.parts, plan)
            left = [part.shard for part in parts if not part.marker.exists()], plan.header
        shards, header = distributed.broadcast_from_main(left)
        if shards:
            self._caption(shards, Plan(self.request.parts, header))
        self._on_main(self._merge)

    def _caption(self, shards: list[int], plan: Plan) -> None:
        if self.model is None:
            self.model = self.load()
            say(self.model.report)
        self.rounds += 1
        ranks = Ranks(f"captions/{self.rounds}")
        begun = done_before(self.request, plan) if distributed.is_main() else 0
        own = shards[distributed.rank() :: distributed.world_size()]
        started = time.monotonic()
        with progress(plan.header["images"], "captions", initial=begun) as bar:

            def show(images: int) -> None:
                bar.update(begun + images - bar.n)

            with disks_told_of(self.request):
                caption_shards(self.request, plan, own, self.model, ranks, show)
            ranks.wait_for_all(show)
        self.images += ranks.add("images", 0)
        self.seconds += time.monotonic() - started
        if ranks.asked_to_stop():
            raise stopping.Stopped

    def _merge(self) -> None:
        plan = find(self.request.parts)
        if plan.header["entries"] or self.request.verify or not self.request.marker.exists():
            captioned, failed = merge(self.request, plan)
            self.captioned += captioned
            self.failed += failed
        if self.request.parquet:
            write_parquet(self.request.out, self.request.parquet)
        remove_plan(self.request.parts)  # last: from here on the same command is another run

    def _end(self) -> None:
        request, tally = self.request, self.tally
        rate = f" ({self.images / self.seconds:.1f} images a second)" if self.seconds else ""
        failed = self.failed + tally.failed
        why = f" ({request.failed} says why; --retry-failed tries them again)" if failed else ""
        examples = filter(None, read_lines(request.out)) if self.captioned else ()
        for line in itertools.islice(examples, EXAMPLES):
            say(printable(f"{line['image']}: {line['caption']}"))
        say(f"done {self.captioned}{rate}, skipped {tally.skipped}, failed {failed}{why}")
        say(f"captions are in {request.out}")


@contextmanager
def disks_told_of(request: Request) -> Iterator[None]:
    """Make a disk's refusal the one line that a user can do something about."""
    try:
        yield
    except OSError as error:
        place = error.filename or request.out
        raise UserError(f"cannot write {place}: {error.strerror or error}") from error
