"""The same captions in each format that people have, as the programs of others write them."""

import csv
import io
import json

SPLITS = ("train", "val", "test")


def flat(captions):
    """(image, number of the caption, caption) of each caption."""
    return [(i, n, text) for i, texts in captions.items() for n, text in enumerate(texts)]


def karpathy(captions, split_of):
    """The document of a dataset_*.json."""
    images = [
        {"filename": image, "split": split_of[image], "sentences": [{"raw": t} for t in texts]}
        for image, texts in captions.items()
    ]
    return {"dataset": "birds", "images": images}


def coco(captions):
    """captions_train2017.json, whose annotations are in no order of the images."""
    ids = {image: 900 + number for number, image in enumerate(captions)}
    images = [{"license": 3, "file_name": image, "id": ids[image]} for image in captions]
    rows = sorted(flat(captions), key=lambda row: row[1])
    annotations = [
        {"image_id": ids[image], "id": number, "caption": text}
        for number, (image, _, text) in enumerate(rows)
    ]
    return {"info": {"year": 2017}, "images": images, "annotations": annotations}


def flickr_token(captions):
    return "".join(f"{image}#{number}\t{text}\n" for image, number, text in flat(captions))


def as_csv(captions, header=("image", "caption")):
    """As pandas writes it: what holds commas or quotes is in quotes."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *((image, caption) for image, _, caption in flat(captions))])
    return text.getvalue()


def results_csv(captions):
    """With a line that lacks its second bar, as one of Flickr30k's does."""
    lines = [f"{image}| {number}| {text}" for image, number, text in flat(captions)]
    image, number, text = flat(captions)[-1]
    lines[-1] = f"{image}| {number}   {text}"
    return "\n".join(["image_name| comment_number| comment", *lines]) + "\n"


def metadata_jsonl(captions):
    rows = ({"file_name": image, "text": text} for image, _, text in flat(captions))
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = {
    "captions_train2017.json": lambda captions: json.dumps(coco(captions)),
    "Flickr8k.token.txt": flickr_token,
    "results_20130124.token": flickr_token,
    "captions.txt": as_csv,
    "results.csv": results_csv,
    "metadata.jsonl": metadata_jsonl,
    "metadata.csv": lambda captions: as_csv(captions, ("file_name", "text")),
}
FORMATS = (*FILES, "folder with metadata.jsonl", "folder with metadata.csv", "folder")


def write_captions(folder, name, captions):
    """Write the captions in a format, and return what `train_file` is then, in `folder`.

    Of folders it is the photos', which is `folder` itself.
    """
    if name == "folder":
        for image, texts in captions.items():
            (folder / image).with_suffix(".txt").write_text("\n".join(texts) + "\n", "utf-8")
        return "."
    file = name.split()[-1]
    (folder / file).write_text(FILES[file](captions), "utf-8")
    return name if name in FILES else "."
