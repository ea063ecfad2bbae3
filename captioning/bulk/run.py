"""Runs one call of bulk captioning, from the plan to the summary."""

import contextlib
import itertools
import time
from contextlib import ExitStack
from typing import Union

from adapters import card
from captioning.bulk import exports, stored_output
from captioning.bulk.exports import printable
from captioning.bulk.local_engine import LocalEngine, disk_errors, finish_shard
from captioning.bulk.merging import merge
from captioning.bulk.planning import Tally, make_plan
from captioning.bulk.ray_engine import RayEngine
from captioning.bulk.request import Request
from captioning.bulk.shards import Plan, Settings, find_plan, remove_plan
from captioning.bulk.tar_folder import TarFolder
from captioning.files.reading import read_objects
from captioning.models.build import trained_config
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress

EXAMPLES = 3  # captions that are logged at the end


class BulkCaptioning:
    """One call of bulk captioning.

    settings: the settings that identify the run; a later call continues the run only if they are
    the same. engine: started only if there are images to caption. restart: whether to abandon an
    unfinished run.
    """

    def __init__(
        self,
        request: Request,
        settings: Settings,
        engine: Union[LocalEngine, RayEngine],
        restart: bool,
    ) -> None:
        self.request, self.settings, self.engine = request, settings, engine
        self.restart = restart
        self.name = request.location(request.out)
        self.tally = Tally()
        self.captioned = self.failed = self.filtered = 0
        self.processed = 0  # images that this call has captioned, or failed to caption
        self.seconds = 0.0  # how long that took

    def run(self) -> None:
        """Caption all images. Raises UserError, and Stopped after a signal.

        After an exception, the captions so far are on disk, and the same command continues.
        """
        request = self.request
        with disk_errors(request), ExitStack() as locks:
            self._begin(locks)
            resumed = find_plan(request.parts) is not None
            if resumed:
                self._finish()
            # After an unfinished plan, plan again: images may have been added since it was made.
            # With --existing overwrite, a second plan for tars would caption them all again.
            if not resumed or request.skips_existing or not request.in_tars:
                # The next plan counts images of the unfinished plan again, as skipped or failed.
                counted_before = self.captioned + self.filtered
                self.failed = 0
                self._plan(resumed)
                self.tally.skipped -= counted_before
                self._finish()
            self._log_results()

    def _begin(self, locks: ExitStack) -> None:
        request = self.request
        request.check_outputs()
        exports.check_replaceable(request)
        locks.enter_context(request.lock())
        if request.address:
            stored_output.begin(request, self.restart)
        plan = find_plan(request.parts)
        if plan is not None and self.restart:
            request.remove_tars(plan.header)
            remove_plan(request.parts)
        elif plan is not None:
            self._check_settings(plan)
            log_line(f"continuing {self.name}")
        if folder := request.tars():
            locks.enter_context(request.lock_tars(folder))

    def _check_settings(self, plan: Plan) -> None:
        """Raise UserError if the unfinished plan was made with other settings."""
        before = plan.header["settings"]
        for name in sorted({*before, *self.settings}):
            was, now = before.get(name), self.settings.get(name)
            if was != now:
                raise UserError(
                    f"{self.name}: the unfinished run has {name} {was!r}, this call has {now!r}: "
                    "finish that run with its own settings, or abandon it with --restart"
                )

    def _plan(self, resumed: bool) -> None:
        request, older = self.request, self._is_older_than_the_weights()
        plan, tally = make_plan(request, self.settings, resumed)
        self.tally = tally
        if request.address and self._has_to_merge(plan):
            stored_output.upload_plan(request, plan)
        others = sorted(tally.checkpoints - {self.settings["checkpoint"]})
        if older:
            others.append(f"earlier weights of {self.settings['checkpoint']}")
        others += [f"another {name}" for name in sorted(tally.settings)]
        if others and tally.skipped and request.skips_existing:
            log_line(
                f"{self.name} has captions of {', '.join(others)}, which stay; "
                "--existing overwrite replaces them"
            )
        if request.verify:
            log_line(
                f"verify: {tally.skipped} have a caption, {plan.header['entries']} "
                f"{'tars have gaps' if request.in_tars else 'have none'}, "
                f"{tally.failed} failed before; {tally.damaged} damaged lines, {tally.repeated} "
                f"repeated, {len(tally.no_sidecar)} sidecars were missing"
            )

    def _is_older_than_the_weights(self) -> bool:
        """Return whether the captions file is older than the checkpoint; False if unknown.

        It is unknown for a checkpoint or a captions file in a store.
        """
        version, out = self.settings.get("checkpoint_time"), self.request.out
        known = isinstance(version, float) and not self.request.address and out.exists()
        return known and out.stat().st_mtime < version

    def _finish(self) -> None:
        """Caption the unfinished shards of the plan, then merge all shards.

        The outputs of a captioned shard are written again if they are incomplete, or if its tar is
        missing.
        """
        request, done, left = self.request, 0, []
        plan, folder = find_plan(request.parts), request.tars()
        numbers = folder.numbers() if folder else ()
        for shard in plan.shards():
            if shard.captions.exists():
                tar_is_missing = folder and plan.tar_number(shard.number) not in numbers
                if tar_is_missing or not shard.marker.exists():
                    finish_shard(request, plan, shard)
                counts = shard.counts()
                done += counts["images"] + counts["failed"] + counts.get("filtered", 0)
            else:
                done += len(shard.recover().lines)
                left.append(shard.number)
        if left:
            self._caption(plan, left, done)
        self._merge(plan)

    def _caption(self, plan: Plan, shards: list[int], done: int) -> None:
        """Caption shards. done: images that earlier calls have processed."""
        self.engine.start(self.request, len(shards))
        started = time.monotonic()
        with progress(plan.header["images"], "captions", initial=done) as bar:
            self.engine.caption(self.request, plan, shards, bar.update)
        self.processed += bar.n - done
        self.seconds += time.monotonic() - started

    def _merge(self, plan: Plan) -> None:
        request, has_to_merge = self.request, self._has_to_merge(plan)
        stored = request.address and has_to_merge
        if has_to_merge:
            if stored:
                stored_output.before_merging(request, plan)
            merged = merge(request, plan)
            if stored:
                stored_output.upload_captions(request, plan)
            self.captioned += merged.captioned
            self.failed += merged.failed
            self.filtered += merged.filtered
            if folder := request.tars():
                folder.record([shard.counts()["written"] for shard in plan.shards()])
        exports.write_all(request, self._captioner)
        if stored:
            stored_output.remove(request)
        remove_plan(request.parts)  # last: without a plan, the same command is a new run

    def _captioner(self) -> dict[str, str]:
        """Return the rows of the cards that describe the captioner."""
        checkpoint, config = self.settings["checkpoint"], {}
        if self.settings.get("backend") != "openai":
            with contextlib.suppress(UserError):
                config = trained_config(checkpoint, self.settings.get("config")).model_dump()
        rows = {"base model": checkpoint, "objective": card.described_objective(config)}
        return {**rows, "trained on": card.described_data(config)}

    def _has_to_merge(self, plan: Plan) -> bool:
        """Return whether the output files have to be written.

        True if the plan has entries, with --verify, or if no earlier call has completed them.
        """
        request = self.request
        return bool(plan.header["entries"] or request.verify or not request.marker.exists())

    def _log_results(self) -> None:
        """Log what was done. Raises UserError for bad tars, and if no image has a caption."""
        request, tally = self.request, self.tally
        rate = f" ({self.processed / self.seconds:.1f} images per second)" if self.seconds else ""
        failed = self.failed + tally.failed
        why = (
            f" ({request.location(request.failed)} says why; --retry-failed tries them again)"
            if failed
            else ""
        )
        examples = read_objects(request.out) if self.captioned else ()
        for line in itertools.islice(examples, EXAMPLES):
            log_line(printable(f"{line['image']}: {line['caption']}"))
        log_line(f"done {self.captioned}{rate}, skipped {tally.skipped}, failed {failed}{why}")
        if request.filter:
            log_line(
                f"filter: {self.filtered} images have no caption with {request.filter}; dropped "
                f"captions are in {request.location(request.filtered)}"
            )
        if request.verify and (folder := request.tars()):
            _verify_tars(folder)
        if failed and not (self.captioned or self.filtered or tally.skipped):
            raise UserError(f"none of {failed} images has a caption{why}")
        log_line(f"captions are in {self.name}")


def _verify_tars(folder: TarFolder) -> None:
    """Log the tars of other runs. Raise UserError if one of this run is missing or changed."""
    wrong, foreign = folder.verify()
    if foreign:
        log_line(
            f"verify: {folder.place} has {len(foreign)} tars that are not of this run: {foreign[0]}"
        )
    if wrong:
        raise UserError(
            f"{folder.place}: {len(wrong)} tars are missing or were changed, the first is "
            f"{wrong[0]}: --existing overwrite with another --write-shards writes all again"
        )
