"""The scoring program: what it prints, what it writes, and how it refuses."""

import json
from functools import partial

import pytest
from PIL import Image

from tests.programs import one_error_line, refused, run_program, unchanged

pytestmark = pytest.mark.usefixtures("no_java")
evaluate = partial(run_program, "captioning.evaluate")
REFERENCES = {"5": ["a man on a horse", "a rider"], "6": ["two cats on a sofa"], "7": ["a bus"]}


@pytest.fixture
def files(tmp_path):
    """Return a function that writes captions and references, and returns the arguments."""

    def write(captions, references=REFERENCES):
        predictions = [{"image_id": i, "caption": text} for i, text in captions.items()]
        (tmp_path / "results.json").write_text(json.dumps(predictions))
        (tmp_path / "references.json").write_text(json.dumps(references))
        return [tmp_path / "results.json", "--references", tmp_path / "references.json"]

    return write


def test_captions_are_scored_printed_and_recorded(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = files({5: "a man on a horse", 6: "😀\u2028\ud83d"})
    done = evaluate(*arguments, "--output_dir", "out dir")
    *rows, _, _, remark, _, skipped = done.out.splitlines()
    shown = {row[:9].strip(): row[10:].split() for row in rows}
    assert list(shown)[:3] == ["Cap. Len.", "Lex. Div.", "BLEU-1"]
    assert shown["METEOR"] == ["-"] and shown["ROUGE-L"] == ["0.500", "±0.500"]
    assert shown["CIDEr"][1] == "±2.500" and remark.startswith("CIDEr weights words by how rare")
    assert skipped.startswith("METEOR skipped: no Java: there is no `java` on PATH")

    summary = json.loads((tmp_path / "out dir" / "metrics.json").read_text())
    assert list(summary) == ["metrics", "settings", "skipped", "command", "versions"]
    assert summary["metrics"]["ROUGE_L"] == {"value": 0.5, "low": 0.0, "high": 1.0, "n": 2}
    assert summary["metrics"]["lex_div"] == {"value": 0.005, "low": None, "high": None, "n": 2}
    assert "1000 resamples" in summary["settings"]["intervals"]
    assert list(summary["skipped"]) == ["METEOR"]
    assert summary["command"].startswith("python -m captioning.evaluate ")
    assert summary["command"].endswith("--output_dir 'out dir'")
    assert summary["versions"]["pycocoevalcap"] and summary["versions"]["java"] is None
    lines = (tmp_path / "out dir" / "per_caption.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert (first["image_id"], first["caption"]) == (5, "a man on a horse")
    assert second["caption"] == "😀\u2028\ud83d"
    assert (first["ROUGE_L"], second["ROUGE_L"], second["CIDEr"]) == (1, 0, 0)


def test_metrics_by_models_in_one_command(
    files, photos, clip_folder, gpt2_folder, itm_checkpoint, tmp_path
):
    """Of five captions of four photos and one more, whose names have their ids."""
    Image.new("RGB", (30, 30), "red").save(tmp_path / "COCO_val2014_000000000004.png")
    captions = dict(enumerate(["the cat", "a dog and the ball", "", "the dog's cat and", "a ball"]))
    arguments = [
        *files(captions, {str(i): ["the cat", text] for i, text in captions.items()}),
        *("--images", tmp_path, "--clip_model", clip_folder, "--ppl_model", gpt2_folder),
        *("--itm_model", itm_checkpoint, "--cache_dir", tmp_path / "cache"),
        *("--batch_size", "2", "--output_dir", tmp_path / "out"),
        *("--metrics", "length", "clipscore", "retrieval", "perplexity", "itm"),
    ]
    done = evaluate(*arguments)
    titles = [line.split("  ")[0] for line in done.out.splitlines()[:5]]
    assert titles == ["Cap. Len.", "R@1", "R@5", "CLIPScore", "PPL"]
    scores = json.loads((tmp_path / "out" / "metrics.json").read_text())
    clip = ["CLIPScore", "RefCLIPScore", "CLIPScore_sentences"]
    names = ["cap_len", *clip, "R@1", "R@5", "R@10", "median_rank", "PPL", "ITM", "ITC"]
    assert list(scores["metrics"]) == names and scores["skipped"] == {}
    assert scores["metrics"]["R@5"]["value"] == 100 and scores["metrics"]["PPL"]["n"] == 4
    assert scores["versions"]["torch"] and scores["versions"]["transformers"]


def test_predictions_of_other_images_are_one_line_and_leave_earlier_scores(files, tmp_path):
    (tmp_path / "metrics.json").write_text("{}")
    arguments = files({8: "a", 9: "b"})
    line = "predictions and references have no image id in common: the first ones are 8 and '5'"
    with unchanged(tmp_path):
        refused("captioning.evaluate", *arguments, "--output_dir", tmp_path, part=line)


def test_images_on_one_side_alone_are_counted_and_the_others_are_scored(files, tmp_path):
    arguments = files({"x": "a", 6: "b", 9: "c"})
    options = ["--metrics", "length", "diversity", "--output_dir", tmp_path / "out"]
    code, out, err = evaluate(*arguments, *options)
    assert code == 0 and "1 captions" in out
    assert len((tmp_path / "out/per_caption.jsonl").read_text().splitlines()) == 1
    assert err == (
        f"warning: {arguments[0]}: 2 of 3 images with a prediction have no references and were "
        "not scored, the first is 'x'\nwarning: 2 of 3 images with references have no prediction "
        "and were not scored\n"
    )


def test_without_references_only_what_needs_none_is_scored(files, tmp_path):
    predictions, *_ = files({"a.jpg": "a man"})
    metrics = ["--metrics", "coco", "length", "diversity", "--output_dir", tmp_path / "out"]
    done = evaluate(predictions, *metrics)
    assert (done.code, done.err) == (0, "")
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert {"cap_len", "lex_div", "distinct_captions"} <= summary["metrics"].keys()
    assert not summary["metrics"].keys() & {"Bleu_1", "CIDEr", "vocab_use"}
    assert set(summary["skipped"].values()) == {"without references"}
    assert "CIDEr, Vocab. Use skipped: without references" in done.out


def test_characters_are_counted_in_a_language_without_spaces(files, tmp_path):
    """The scores are those of the same captions with a space after each character."""
    texts = {"zh": ["一只狗在3米外跑。", "两个人，在海边 Beach"]}  # noqa: RUF001
    texts["de"] = ["一 只 狗 在 3 米 外 跑", "两 个 人 在 海 边 beach"]
    references = {"zh": [["一只狗在草地上跑"], ["两个人在海边走", "人们在沙滩上"]]}
    references["de"] = [[" ".join(text) for text in group] for group in references["zh"]]
    chosen = ["coco", "length", "diversity", "repetition", "detail"]
    metrics = {}
    for language in ("zh", "de"):
        arguments = files(dict(enumerate(texts[language])), dict(enumerate(references[language])))
        options = ["--language", language, "--output_dir", tmp_path / language]
        done = evaluate(*arguments, *options, "--metrics", *chosen)
        summary = json.loads((tmp_path / language / "metrics.json").read_text())
        metrics[language] = summary["metrics"]
        assert ("tokenizer: characters" in done.out) == (language == "zh")
        names = "METEOR, Nouns, Adjectives, Numbers, Relations"
        line = f"{names} skipped: only for English, not for language: {language}"
        assert done.out.splitlines()[-1] == line
    assert metrics["zh"] == metrics["de"]
    assert metrics["zh"]["cap_len"]["value"] == 7.5 and metrics["zh"]["CIDEr"]["value"] > 0
    line = "language: found 'zh-CN'; give two letters"
    refused("captioning.evaluate", *arguments, "--language=zh-CN", part=line)


def test_several_captions_of_an_image_are_scored(files):
    """Ids as in Flickr8k's files; each caption has the references of its image."""
    texts = {"5#0": "a rider", "5#1": "a horse", "6": "a bus"}
    several = evaluate(*files(texts), "--metrics", "coco")
    assert several.code == 0 and "warning: 1 of 3 images with references" in several.err
    references = [REFERENCES[i.partition("#")[0]] for i in texts]
    alone = files(dict(enumerate(texts.values())), dict(enumerate(references)))
    assert evaluate(*alone, "--metrics", "coco").out == several.out


def test_a_folder_that_cannot_be_written_to_costs_no_work(files, monkeypatch):
    monkeypatch.setattr("captioning.evaluate.score", lambda *_: pytest.fail("scored"))
    arguments = files({5: "a man"})
    code, out, err = evaluate(*arguments, "--output_dir", arguments[0])
    assert (code, out) == (2, "") and one_error_line(err, "error: cannot write")


def test_an_option_that_no_chosen_metric_uses_is_a_warning(files):
    options = ["--synonyms", "none.txt", "--itm_model", "none.pth", "--spice_timeout", "5"]
    done = evaluate(*files({5: "a man"}, {"5": ["a man"]}), "--metrics", "coco", *options)
    assert done.code == 0 and done.err.splitlines() == [
        "warning: --synonyms has no effect without --metrics chair",
        "warning: --itm_model has no effect without --metrics itm",
    ]


def test_two_files_are_compared_in_one_command(files, tmp_path):
    other, *_ = files(dict(enumerate(["a man", "a", "a cat"])))
    other = other.rename(tmp_path / "other.json")
    texts = ["a man  rides", "a dog", "a cat"]
    results, *rest = files(dict(enumerate(texts)), {str(i): ["a man"] for i in range(3)})
    rest += ["--metrics", "length"]
    given = ["--compare", other, results, *rest]
    code, out, _ = evaluate(*given, "--output_dir", tmp_path / "out")
    assert code == 0
    assert out.splitlines()[1].split()[:5] == ["Cap.", "Len.", "1.67", "2.33", "0.67"]
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert list(written["differences"]) == ["cap_len"]
    assert written["differences"]["cap_len"]["n"] == 3 and "--compare" in written["command"]
    for wrong in ([results, results, *rest], rest, [results, *given]):
        refused("captioning.evaluate", *wrong, part="captioning.evaluate: error: ")  # its usage
