"""Runs one call of bulk captioning, from the plan to the summary."""

import contextlib
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from captioning.bulk import outputs, plan, ray_engine
from captioning.bulk.claims import caption_claimed, shared_counters
from captioning.bulk.inputs import Inputs
from captioning.bulk.plan import Plan
from captioning.bulk.request import Request
from captioning.bulk.work import Worker
from captioning.files import stores
from captioning.files.images import kinds_of
from captioning.metrics.scoring import warn_of_one_for_most
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress

EXAMPLES = 3  # captions that are logged at the end
COMPARED = 1000  # captions, the first, that should not all be the same
# Settings that may differ between the captions of one file without a remark.
OF_INPUT = ("input", "glob", "root", "column", "recursive", "captions", "existing", "sidecar")


@dataclass
class BulkCaptioning:
    """One call of bulk captioning, in one process or in those of torchrun.

    - settings: identify the run; a later call continues it only if they are the same
    - load: returns the captioner, see `CheckpointModel`; called only if there is work
    - cluster_device: the device of tasks on the Ray cluster to which this process is connected;
      None to caption in this process
    """

    request: Request
    settings: dict[str, Any]
    load: Callable[[], Any]
    cluster_device: Optional[torch.device] = None

    def __post_init__(self):
        self.model, self.is_resumed = None, False
        self.totals, self.left_out, self.seconds = Counter(), [], 0.0

    def run(self) -> None:
        """Caption all images: the main process plans, all caption, the main process merges.

        Raises UserError, and Stopped after a signal. The captions so far are kept then, and the
        same command continues.
        """
        with contextlib.ExitStack() as locks:
            distributed.run_on_main(lambda: self._begin(locks))
            self.is_resumed = distributed.broadcast_from_main(self.is_resumed)
            if self.is_resumed:  # images may have been added since its plan was made
                self._finish()
                # The next plan counts the images of this one again, as skipped or failed.
                self.totals["skipped"] -= self.totals["captioned"] + self.totals["filtered"]
                self.totals["failed"] = 0
            distributed.run_on_main(self._plan)
            self._finish()
            distributed.run_on_main(self._log_results)

    def _begin(self, locks: contextlib.ExitStack) -> None:
        request = self.request
        request.check()
        locks.enter_context(request.lock())
        if not plan.exists(request.parts):
            return
        if request.restart:
            self._abandon()
            return
        before = Plan(request.parts).header["settings"]
        for name in self._changed(before):
            raise UserError(
                f"{request.out}: the unfinished run has {name} {before.get(name)!r}, this call has "
                f"{self.settings.get(name)!r}: finish that run with its own settings, or abandon "
                "it with --restart"
            )
        log_line(f"continuing {request.out}")
        self.is_resumed = True

    def _abandon(self) -> None:
        """Remove the unfinished plan, and its tars unless its captions are merged already."""
        with contextlib.suppress(UserError):  # it is damaged, or of another version
            made = Plan(self.request.parts)
            writes_tars = made.header["settings"]["write_shards"]
            if writes_tars and made.header["before"] == self._out_stamp():
                for unit in range(len(made)):
                    stores.remove(outputs.tar_of(made, unit))
        plan.remove(self.request.parts)

    def _out_stamp(self) -> Optional[stores.Stamp]:
        return stores.stamp_if_any(self.request.out)

    def _plan(self) -> None:
        request = self.request
        earlier = outputs.read_earlier(request, self.settings)
        if request.skips_existing and earlier.done:
            self._report_changed_settings(earlier.settings)
        if not (request.skips_existing or self.is_resumed):
            # An unfinished run with --existing overwrite has replaced the captions until then.
            earlier = outputs.Earlier()
        images = Inputs(request, earlier)
        header = {
            "settings": self.settings,
            "before": self._out_stamp(),
            "first_tar": outputs.first_tar(request),
            "counts": images.counts,
            "tars": images.tars,
        }
        plan.make(request.parts, header, images.units())
        if changed := images.counts["other prompt"]:
            log_line(
                f"{changed} images have captions made with another prompt, which stay; "
                "--existing overwrite replaces them"
            )
        left_out = images.left_out
        left_out.pop(request.sidecar, None)
        if left_out and not self.is_resumed:
            log_line(kinds_of(left_out))

    def _changed(self, before: dict[str, Any]) -> list[str]:
        """Return the names of settings whose value is not that of an earlier run."""
        names = sorted({*before, *self.settings})
        return [name for name in names if before.get(name) != self.settings.get(name)]

    def _report_changed_settings(self, before: dict[str, Any]) -> None:
        changed = [name for name in self._changed(before) if name not in OF_INPUT]
        if before and changed:
            was = ", ".join(f"{name} {before.get(name)!r}" for name in changed)
            log_line(
                f"{self.request.out} has captions made with {was}, which stay; "
                "--existing overwrite replaces them"
            )

    def _finish(self) -> None:
        """Caption the units of the plan that are not done, then merge all units."""
        made = Plan(self.request.parts)
        # The main process lists for all: others may see files that are new or, in a store, late.
        left = [unit for unit in range(len(made)) if not made.is_done(unit)]
        suspects = [unit for unit in left if made.tries(unit)]
        left, suspects = distributed.broadcast_from_main((left, suspects))
        if left:
            try:
                self._caption(made, left, suspects)
            except BaseException:
                if distributed.is_main():
                    plan.remove_unless_begun(self.request.parts)  # such as after a wrong setting
                raise
        distributed.run_on_main(lambda: self._merge(made))

    def _caption(self, made: Plan, left: list[int], suspects: list[int]) -> None:
        done = sum(map(made.kept, range(len(made))))
        total = None if made.header["tars"] else made.header["counts"]["planned"]
        if self.model is None and self.cluster_device is None:
            self.model = self.load()
            log_line(self.model.report)
        started = time.monotonic()
        with progress(total, "captions", initial=done) as bar:

            def show(images: int) -> None:
                bar.update(done + images - bar.n)

            if device := self.cluster_device:
                given = (self.request, made, left, self.load, show, device)
                self.left_out += ray_engine.caption(*given)
            else:
                add = shared_counters(made.header["id"])
                worker = Worker(self.request, made, self.model, lambda n: show(add("images", n)))
                units = sorted(set(left) - set(suspects))
                caption_claimed(worker, units, suspects, add)
                show(add("images", 0))
                reports = distributed.gather_on_main((worker.done, worker.left_out))
                for names, left_out in reports or ():
                    made.add(names)
                    self.left_out += left_out
        self.seconds += time.monotonic() - started
        self.totals["processed"] += bar.n - done

    def _merge(self, made: Plan) -> None:
        request = self.request
        # After a call without work, the files stay as they are.
        is_there = stores.exists(request.out) and stores.exists(request.marker)
        if len(made) or request.verify or not is_there:
            self.totals.update(outputs.merge(request, made))
        self.counts = made.header["counts"]
        outputs.export(request, made)
        plan.remove(request.parts)  # last: without a plan, the same command is a new run

    def _log_results(self) -> None:
        """Log what was done. Raises UserError if no image has a caption."""
        request, totals = self.request, self.totals
        skipped = self.counts.get("skipped", 0) + totals["skipped"]
        failed = self.counts.get("failed before", 0) + totals["failed"]
        rate = (
            f" ({totals['processed'] / self.seconds:.1f} images per second)" if self.seconds else ""
        )
        why = f" ({request.failed} says why; --retry-failed tries them again)" if failed else ""
        if totals["captioned"]:
            lines = list(itertools.islice(outputs.lines_of(request, request.out), COMPARED))
            for line in lines[:EXAMPLES]:
                log_line(outputs.printable(f"{line['image']}: {line['caption']}"))
            warn_of_one_for_most([line["caption"] for line in lines])
        log_line(f"done {totals['captioned']}{rate}, skipped {skipped}, failed {failed}{why}")
        if request.filter:
            log_line(
                f"filter: {totals['filtered']} images have no caption with {request.filter}; "
                f"dropped captions are in {request.filtered}"
            )
        if totals["cut"]:
            log_line(f"{totals['cut']} captions were cut at max_length; their lines have cut: true")
        if self.left_out:
            log_line(
                f"left out: {len(self.left_out)} files in tars, such as {self.left_out[0]}: a "
                "sample, whose names are alike up to the first dot, has one image"
            )
        if failed and not (totals["captioned"] or totals["filtered"] or skipped):
            raise UserError(f"none of {failed} images has a caption{why}")
        log_line(f"captions are in {request.out}")
