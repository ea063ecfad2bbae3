"""SPICE (Anderson et al. 2016), through the Java program that pycocoevalcap ships."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from captioning.metrics.java import java_process

# It writes its results with the JavaScript engine that Java had until then.
_LAST_JAVA = 14


def spice_problem(java: int) -> Optional[str]:
    """Return in one line why SPICE cannot run with this major version of Java, or None."""
    problems = []
    if java > _LAST_JAVA:
        problems.append(f"it needs Java 8 to {_LAST_JAVA}, this is Java {java}")
    library = _jar().parent / "lib"
    models = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
    if not all((library / name).is_file() for name in models):
        problems.append(
            "its models are missing (fetch them once: "
            "python -m pycocoevalcap.spice.get_stanford_models)"
        )
    return "; ".join(problems) or None


def spice_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]], time_limit: float, heap: str
) -> list[float]:
    """Return the SPICE F score of each caption; the set's is their mean. Raises JavaError.

    captions: N tokenised captions; references: N lists of them; time_limit in seconds; heap: the
    most memory, such as "8G". SPICE's cache of parses is not used: it lies inside the installed
    package, and fails on new systems.
    """
    items = [
        {"image_id": index, "test": caption, "refs": list(group)}
        for index, (caption, group) in enumerate(zip(captions, references))
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "captions.json"), Path(folder, "scores.json")
        source.write_text(json.dumps(items), encoding="ascii")
        arguments = [f"-Xmx{heap}", "-jar", _jar(), source, "-out", result, "-silent"]
        with java_process(arguments, time_limit) as (process, _):
            process.communicate()
            scored = json.loads(result.read_text(encoding="utf-8"))
    by_index = {item["image_id"]: float(item["scores"]["All"]["f"]) for item in scored}
    return [by_index[index] for index in range(len(captions))]


def _jar():
    from pycocoevalcap.spice import spice

    return Path(spice.__file__).with_name(spice.SPICE_JAR)
