#!/usr/bin/env bash
# Finds the Python environment that the project runs in, or makes it, and prints its interpreter:
#
#   PYTHON_BIN="$(bash scripts/setup.sh)"        with what training and captioning need
#   PYTHON_BIN="$(bash scripts/setup.sh app)"    with the web page's Gradio as well
#   PYTHON_BIN="$(bash scripts/setup.sh dev)"    with the tools of the tests besides
#
# An active virtual or conda environment that satisfies the requirements is used as it is.
# Otherwise they are installed into an environment of the project's own:
#
#   VENV     its folder, relative to the repository (default .venv)
#   PYTHON   the interpreter it is made from, 3.9 or later (default python3); for app 3.10 or later
#   LATEST   1: the newest versions that the requirements allow
#
# Where VENV or PYTHON is set, the active environment is passed over. What is installed has the
# versions of requirements-lock.txt, which were tested together on Python 3.9 to 3.13; a later one
# takes the newest. pip reads its PIP_* variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

case "${1:-}" in
    "") requirements="requirements.txt" ;;
    app | dev) requirements="requirements-$1.txt" ;;
    *) fail "scripts/setup.sh takes no argument, 'app' or 'dev', not '$1'" ;;
esac
python="${PYTHON:-python3}"
venv="${VENV:-.venv}"
[[ $venv == /* ]] || venv="$PWD/$venv"
interpreter="$venv/bin/python"
log="$venv/setup.log"
# Lies in the environment while packages are being written to it. One that is found there later
# was left by an interrupted call: pip would take the half-written packages for installed.
unfinished="$venv/setup-unfinished"

# Prints nothing for an interpreter that is absent or does not run.
version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

recent_enough() {
    local major minor
    IFS=. read -r major minor <<<"$1"
    ((major == 3 && minor >= 9))
}

# Prints, on one line, the requirements that the environment of the interpreter does not satisfy.
lacking() {
    "$1" scripts/check_requirements.py "$requirements" 2>/dev/null
}

use_active_environment() {
    local environment version missing
    [[ -z ${VENV:-} && -z ${PYTHON:-} ]] || return 1
    for environment in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
        [[ -n $environment && $environment != "$venv" ]] || continue
        version="$(version_of "$environment/bin/python")"
        if [[ -z $version ]]; then
            missing="a Python that runs"
        elif ! recent_enough "$version"; then
            missing="Python 3.9 or later"
        elif missing="$(lacking "$environment/bin/python")"; then
            printf '%s\n' "$environment/bin/python"
            return
        fi
        say "the active environment $environment lacks ${missing:-pip}: using $venv"
    done
    return 1
}

ready() {
    [[ -x $interpreter && ! -e $unfinished ]] && lacking "$interpreter" >/dev/null
}

check_folder() {
    mkdir -p "$(dirname "$venv")" 2>/dev/null || true
    [[ -w $(dirname "$venv") ]] || fail "cannot write to $(dirname "$venv"): set VENV to a folder that can be made"
    if [[ -e $venv && ! -e $venv/pyvenv.cfg && ! -e $unfinished ]]; then
        fail "$venv exists and is no virtual environment: remove it or set VENV to another folder"
    fi
}

check_python() {
    local version
    version="$(version_of "$python")"
    [[ -n $version ]] || fail "'$python' is not found or does not run: set PYTHON to an interpreter, 3.9 or later"
    recent_enough "$version" || fail "'$python' is Python $version: set PYTHON to an interpreter, 3.9 or later"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$python' has no venv module: install it (Debian, Ubuntu: apt install python$version-venv) or set PYTHON to another interpreter"
    [[ $requirements != requirements-app.txt || $version != 3.9 ]] || {
        say "error: the web page needs Python 3.10 or later and '$python' is $version: set PYTHON to a later one (PYTHON=python3.11)"
        exit 2
    }
}

check_disk() {
    local needed=7 free # most of it is CUDA's libraries, which come with torch on Linux
    [[ $(uname -s) == Linux ]] || needed=2
    free="$(df -Pk "$venv" | awk 'NR == 2 {print int($4 / 1024 / 1024)}')"
    ((free >= needed)) ||
        fail "$venv has $free GB of disk and needs about $needed: make room or set VENV to a folder on another disk"
}

make_environment() {
    check_python
    mkdir -p "$venv"
    touch "$unfinished"
    find "$venv/" -mindepth 1 ! -path "*/${unfinished##*/}" -delete
    check_disk
    "$python" -m venv "$venv" >"$log" 2>&1 || fail "'$python' could not make $venv: see $log"
}

install() {
    local lock="requirements-lock.txt" versions="the newest versions" hint="" minor
    minor="$(version_of "$interpreter")"
    if [[ ${LATEST:-} != 1 ]] && ((${minor#3.} <= 13)); then # the lock is for Python 3.9 to 3.13
        versions="the versions of $lock" hint="; LATEST=1 takes newer versions"
        # Unlike the option -c, it holds where pip builds a package from its source, too.
        export PIP_CONSTRAINT="$lock${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"
    fi
    say "installing $requirements, $versions, into $venv (a few minutes the first time; log: $log)"
    touch "$unfinished"
    if ! "$interpreter" -m pip install --no-input -r "$requirements" >"$log" 2>&1; then
        grep -q '^Installing collected packages' "$log" || rm "$unfinished" # nothing was written
        explain_failure
    fi
    rm "$unfinished"
    say "installed in $SECONDS s"
}

explain_failure() {
    if grep -qi 'No space left on device' "$log"; then
        fail "the disk is full: make room or set VENV or TMPDIR to a folder on another disk (log: $log)"
    elif grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError' "$log"; then
        fail "pip cannot reach the package index: check the network, the proxy or PIP_INDEX_URL (log: $log)"
    fi
    tail -n 15 "$log" >&2
    fail "pip could not install $requirements: the lines above are the end of $log$hint"
}

set_up() {
    if [[ -e $unfinished ]]; then
        say "an earlier installation did not finish: making $venv anew"
        make_environment
    elif [[ -z $held ]]; then
        make_environment
    elif ! recent_enough "$held"; then
        fail "$venv holds Python $held: remove it or set VENV to another folder"
    fi
    install
}

if use_active_environment; then
    exit
fi
held="$(version_of "$interpreter")"
if [[ -n ${PYTHON:-} && -n $held && ! -e $unfinished ]]; then
    check_python
    [[ $held == "$(version_of "$python")" ]] ||
        fail "$venv holds Python $held, '$python' is another: remove it or set VENV to another folder"
fi
if ! ready; then
    check_folder
    if command -v flock >/dev/null; then
        # Kept open by pip as well: no second call deletes what an orphaned pip still writes.
        exec 9>"$venv.lock"
        flock --nonblock 9 || { say "waiting for another call that installs into $venv" && flock 9; }
    fi
    ready || set_up
fi
printf '%s\n' "$interpreter"
