"""One call from its plan to its summary."""

import itertools
import time
from contextlib import ExitStack
from typing import Any, Callable, Protocol

from captioning.bulk import stored_output
from captioning.bulk.local_engine import Count, disks_told_of, done_before
from captioning.bulk.merging import merge, printable, write_parquet
from captioning.bulk.planning import Tally, make_plan
from captioning.bulk.request import OF_THE_IMAGES, Request
from captioning.bulk.shards import Plan, find, parts_of, remove_plan
from captioning.files.reading import read_lines
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress, say

EXAMPLES = 3


class Engine(Protocol):
    """What captions shards: `OneProcess`, or many on a cluster."""

    def start(self, request: Request, shards: int) -> None:
        """Have a captioner loaded, before each `caption` of so many shards. Raises UserError."""

    def caption(self, request: Request, plan: Plan, shards: list[int], count: Count) -> None:
        """Finish those shards, or raise Stopped, UserError or OSError: what is done is kept."""


class BulkCaptioning:
    """settings: what makes captions what they are, by which an unfinished run is recognised;
    engine: captions, if there is anything to caption; restart: drop an unfinished run."""

    def __init__(
        self, request: Request, settings: dict[str, Any], engine: Engine, restart: bool
    ) -> None:
        self.request, self.settings, self.engine = request, settings, engine
        self.restart = restart
        self.named = request.told(request.out)
        self.tally = Tally()
        self.captioned = self.failed = 0
        self.images, self.seconds = 0, 0.0  # of this call

    def run(self) -> None:
        """Raises UserError, and Stopped when asked to stop: all that is done is kept."""
        before = 0
        with ExitStack() as held:
            self._to_disk(lambda: self._begin(held))
            resumed = find(self.request.parts) is not None
            if resumed:
                self._finish()
            # Images may have come since the unfinished plan was made.
            if not resumed or self.request.keeps() or not self.request.in_tars:
                if resumed:
                    before, self.failed = self.captioned, 0  # which the next plan counts again
                self._to_disk(lambda: self._plan(resumed))
                self.tally.skipped -= before
                self._finish()
            self._to_disk(self._end)

    def _to_disk(self, do: Callable[[], None]) -> None:
        with disks_told_of(self.request):
            do()

    def _begin(self, held: ExitStack) -> None:
        self.request.check_outputs()
        held.enter_context(self.request.alone())
        if self.request.address:
            stored_output.begin(self.request, self.restart)
        plan = find(self.request.parts)
        if plan is not None:
            self._go_on_with(plan)
        held.enter_context(self.request.owning_tars())

    def _go_on_with(self, plan: Plan) -> None:
        """Raises UserError where it is that of another run, unless it is to be dropped."""
        if self.restart:
            self.request.drop_tars(plan.header)
            remove_plan(self.request.parts)
            return
        before = plan.header["settings"]
        for name in sorted({*before, *(self.settings.keys() - set(OF_THE_IMAGES))}):
            was, now = before.get(name), self.settings.get(name)
            if was != now:
                raise UserError(
                    f"{self.named}: an unfinished run had {name} {was!r}, and now it is "
                    f"{now!r}: finish it as it was, or drop it with --restart"
                )
        say(f"going on with {self.named}")

    def _plan(self, resumed: bool) -> None:
        older = self._is_older_than_the_weights()
        plan, self.tally = make_plan(self.request, self.settings, resumed)
        if self.request.address and self._has_to_merge(plan):
            stored_output.keep_plan(self.request, plan)
        tally = self.tally
        others = sorted(tally.checkpoints - {self.settings["checkpoint"]})
        if older:
            others.append(f"earlier weights of {self.settings['checkpoint']}")
        others += [f"another {name}" for name in sorted(tally.settings)]
        if others and tally.skipped and self.request.keeps():
            say(
                f"{self.named} has captions of {', '.join(others)}, which stay; "
                "--existing overwrite makes them anew"
            )
        if self.request.verify:
            say(
                f"verify: {tally.skipped} have a caption, {plan.header['entries']} "
                f"{'tars have gaps' if self.request.in_tars else 'have none'}, "
                f"{tally.failed} failed before; {tally.damaged} damaged lines, {tally.repeated} "
                f"repeated, {len(tally.no_sidecar)} sidecars were missing"
            )

    def _is_older_than_the_weights(self) -> bool:
        """Whether a checkpoint on this disk was written anew after the captions were."""
        version, out = self.settings.get("checkpoint_time"), self.request.out
        known = isinstance(version, float) and not self.request.address and out.exists()
        return known and out.stat().st_mtime < version

    def _finish(self) -> None:
        """Caption what is left of the plan, and put it together."""
        plan = find(self.request.parts)
        parts = parts_of(self.request.parts, plan)
        left = {part.shard for part in parts if not part.marker.exists()}
        if folder := self.request.tars():  # where someone may have removed some
            there = folder.numbers()
            left.update(shard for shard in range(len(plan)) if plan.number(shard) not in there)
        if left:
            self._caption(sorted(left), plan)
        self._to_disk(self._merge)

    def _caption(self, shards: list[int], plan: Plan) -> None:
        self.engine.start(self.request, len(shards))
        begun = done_before(self.request, plan)
        started = time.monotonic()
        with progress(plan.header["images"], "captions", initial=begun) as bar:

            def count(images: int) -> None:
                self.images += images
                bar.update(images)

            self._to_disk(lambda: self.engine.caption(self.request, plan, shards, count))
        self.seconds += time.monotonic() - started

    def _merge(self) -> None:
        plan = find(self.request.parts)
        stored = self.request.address and self._has_to_merge(plan)
        if self._has_to_merge(plan):
            if stored:
                stored_output.before_merging(self.request, plan)
            captioned, failed = merge(self.request, plan)
            if stored:
                stored_output.keep_captions(self.request, plan)
            self.captioned += captioned
            self.failed += failed
            if folder := self.request.tars():
                parts = parts_of(self.request.parts, plan)
                folder.record(
                    {n: of for part in parts for n, of in part.counts().get("written", {}).items()}
                )
        if self.request.parquet:
            write_parquet(self.request.out, self.request.parquet)
        if stored:
            stored_output.remove(self.request)
        remove_plan(self.request.parts)  # last: from here on the same command is another run

    def _has_to_merge(self, plan: Plan) -> bool:
        """Whether there is anything to put together."""
        request = self.request
        return bool(plan.header["entries"] or request.verify or not request.marker.exists())

    def _end(self) -> None:
        request, tally = self.request, self.tally
        rate = f" ({self.images / self.seconds:.1f} images a second)" if self.seconds else ""
        failed = self.failed + tally.failed
        why = (
            f" ({request.told(request.failed)} says why; --retry-failed tries them again)"
            if failed
            else ""
        )
        examples = filter(None, read_lines(request.out)) if self.captioned else ()
        for line in itertools.islice(examples, EXAMPLES):
            say(printable(f"{line['image']}: {line['caption']}"))
        say(f"done {self.captioned}{rate}, skipped {tally.skipped}, failed {failed}{why}")
        if request.verify and request.write_shards:
            self._verify_tars()
        if failed and not (self.captioned or tally.skipped):
            raise UserError(f"none of {failed} images has a caption{why}")
        say(f"captions are in {self.named}")

    def _verify_tars(self) -> None:
        wrong, foreign = self.request.tars().verify()
        place = self.request.write_shards
        if foreign:
            say(f"verify: {place} has {len(foreign)} tars that are not of this run: {foreign[0]}")
        if wrong:
            raise UserError(
                f"{place}: {len(wrong)} tars are missing or not as they were written, the first is "
                f"{wrong[0]}: --existing overwrite with another --write-shards makes all anew"
            )
