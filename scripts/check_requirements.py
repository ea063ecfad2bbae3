"""Tell which lines of a requirements file the running environment does not satisfy.

Run: python scripts/check_requirements.py requirements.txt

Prints them on one line, separated by commas, and exits with 1; prints nothing and exits with 0
where there are none. Needs nothing but pip, or the packaging library where pip is absent.
"""

import sys
from importlib.metadata import distributions
from pathlib import Path

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
    from pip._vendor.packaging.utils import canonicalize_name


def read_requirements(path):
    """Yield the requirements of a file and of those it includes with ``-r``."""
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            yield from read_requirements(path.parent / line[3:].strip())
        elif line:
            yield Requirement(line)


def installed_versions():
    """Return the version of every installed distribution, by its normalised name.

    ``importlib.metadata.version`` does not find ``ruamel.yaml`` as ``ruamel_yaml`` on Python 3.9.
    """
    versions = {}
    for distribution in distributions():
        name = canonicalize_name(distribution.metadata["Name"] or "")
        versions.setdefault(name, distribution.version)  # the first on the path is imported
    return versions


def is_satisfied(requirement, versions):
    """Return whether the requirement is installed, or its marker leaves this Python out.

    A pre-release counts: a nightly build of torch was installed on purpose.
    """
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    installed = versions.get(canonicalize_name(requirement.name))
    return installed is not None and requirement.specifier.contains(installed, prereleases=True)


def main(path):
    """Print the unsatisfied requirements and return the exit status."""
    versions = installed_versions()
    missing = [r for r in read_requirements(Path(path)) if not is_satisfied(r, versions)]
    if missing:
        print(", ".join(f"{r.name}{r.specifier}" for r in missing))
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
