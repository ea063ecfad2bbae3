"""Tell which lines of a requirements file the running environment does not satisfy.

    python scripts/check_requirements.py requirements.txt

Prints them on one line, separated by commas, and exits with 1; prints nothing and exits with 0
where there are none. Needs pip, or the packaging library where pip is absent.
"""

import argparse
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


def installed_distributions():
    """Return every installed distribution by its normalised name, which Python 3.9 cannot look up.

    The first on the path is the one that is imported.
    """
    installed = reversed(list(distributions()))
    return {canonicalize_name(found.metadata["Name"] or ""): found for found in installed}


def is_satisfied(requirement, installed):
    """Return whether the requirement is installed, or its marker leaves this Python out.

    A pre-release counts: a nightly build of torch was installed on purpose.
    """
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    found = installed.get(canonicalize_name(requirement.name))
    return found is not None and requirement.specifier.contains(found.version, prereleases=True)


def main(argv=None):
    """Print what is missing and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("requirements", type=Path)
    requirements = read_requirements(parser.parse_args(argv).requirements)
    installed = installed_distributions()
    missing = [r for r in requirements if not is_satisfied(r, installed)]
    if missing:
        print(", ".join(f"{r.name}{r.specifier}" for r in missing))
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
