"""The filter: what it drops is exact, kept in a file of its own, and done."""

import statistics

import pytest

from captioning.files.tars import samples
from captioning.metrics.itm import ItmScorer
from tests.captioning.bulk.conftest import read_lines
from tests.captioning.tar_files import write_tar

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow writes Parquet")
SEVERAL = ["--num_return", "2", "--prefix", "see ", "--suffix", "!"]
SEVERAL += ["sample=true", "temperature=3", "top_p=1", "--shard_size", "4", "eval_batch_size=3"]


@pytest.fixture
def flags(itm_checkpoint):
    return lambda above: ["--filter", f" itm > {above:.3f}", "--itm_model", str(itm_checkpoint)]


@pytest.fixture
def dropped(tmp_path):
    return lambda: read_lines(tmp_path / "out" / "captions.filtered.jsonl")


def test_captions_that_are_not_above_go_to_a_file_of_their_own_and_are_done(
    run, photos, flags, dropped, itm_checkpoint, tmp_path, load
):
    (photos / "scene_000003a.png").write_bytes(b"no image")  # takes no other image's score
    whole, _ = run(photos, *SEVERAL, *flags(0.0), folder="whole")
    scorer = ItmScorer(str(itm_checkpoint))
    for line in whole:
        bare = [text.removeprefix("see ").removesuffix("!") for text in line["captions"]]
        scores = scorer.scores(scorer.read(line["image"])[None], [bare])[0].tolist()
        assert line["itms"] == pytest.approx(scores, abs=1e-4)
    above = round(statistics.median(value for line in whole for value in line["itms"]), 3)
    more = ["--sidecar", "--write-shards", str(tmp_path / "tars")]
    more += ["--parquet", str(tmp_path / "a.parquet")]
    lines, log = run(photos, *SEVERAL, *flags(above), *more)
    kept, lost = ({line["image"]: line for line in part} for part in (lines, dropped()))
    assert kept.keys() & lost.keys(), "no image has a good and a bad caption"
    for line in whole:
        triples = list(zip(line["captions"], line["scores"], line["itms"]))
        for part, wanted in ((kept, True), (lost, False)):
            expected = [each for each in triples if (each[2] > above) == wanted]
            found = part.get(line["image"])
            assert (found is None) == (not expected)
            if expected:
                names = ("caption", "score", "itm")
                assert tuple(found[name] for name in names) == expected[0]
                many = [found.get(f"{name}s", [found[name]]) for name in names]
                assert list(zip(*many)) == expected
                assert ("captions" in found) == (len(expected) > 1)
    assert lines[0]["settings"]["filter"] == f"itm>{above:g}"
    assert lines[0]["settings"]["itm_model"] == str(itm_checkpoint)
    assert {str(path.with_suffix(".png")) for path in photos.rglob("*.txt")} == kept.keys()
    tars = [list(samples(str(path))) for path in (tmp_path / "tars").glob("*.tar")]
    assert sum(map(len, tars)) == len(kept)
    column = parquet.read_table(tmp_path / "a.parquet").column("itm").to_pylist()
    assert column == [line["itm"] for line in lines]
    assert f"done {len(kept)}, skipped 0, failed 1" in log
    assert f"filter: {10 - len(kept)} images have no caption with itm>{above:g}; dropped " in log
    assert load.called
    load.reset_mock()
    again, log = run(photos, *SEVERAL, *flags(above), *more)
    assert again == lines and not load.called and "done 0, skipped 11" in log


@pytest.mark.slow
def test_another_filter_tries_again_what_was_dropped(run, photos, flags, dropped, tmp_path):
    """Of a tar, with the scores of its files."""
    write_tar(tmp_path / "a.tar", sorted(photos.rglob("*.png")))
    of_files, _ = run(photos, *flags(0.0), folder="files")
    above = round(statistics.median(line["itm"] for line in of_files), 3)
    kept, _ = run(tmp_path / "a.tar", *flags(above))
    lost = dropped()
    second, log = run(tmp_path / "a.tar", *flags(0.0))
    assert f"done {len(lost)}, skipped {len(kept)}, failed 0" in log and not dropped()
    assert {line["itm"] for line in second} == {line["itm"] for line in of_files}
    third, log = run(tmp_path / "a.tar", *flags(above), "--existing", "overwrite")
    assert (third, dropped()) == (kept, lost)
