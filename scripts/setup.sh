#!/usr/bin/env bash
# Finds or creates the project's Python environment, and prints the path of its interpreter:
#
#   PYTHON_BIN="$(bash scripts/setup.sh)"            packages for training and captioning
#   PYTHON_BIN="$(bash scripts/setup.sh app)"        also Gradio, for the web page
#   PYTHON_BIN="$(bash scripts/setup.sh cluster)"    also Ray
#   PYTHON_BIN="$(bash scripts/setup.sh dev)"        all of these, and the tools for tests
#
# An active virtual or conda environment that satisfies the requirements is used unchanged.
# Otherwise uv 0.9 or later, which is installed if it is missing, makes a new environment.
#
#   VENV     the environment's folder, relative to the repository (default .venv)
#   PYTHON   the interpreter for it, 3.9 or later, for app 3.10 or later (default python3)
#   LATEST   1: the newest versions that the requirements allow, instead of requirements-lock.txt
#
# If VENV or PYTHON is set, the active environment is ignored. Package indexes are taken from uv's
# variables (UV_DEFAULT_INDEX), then pip's settings (PIP_INDEX_URL, pip.conf), then uv.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

case "${1:-}" in
    "") requirements="requirements.txt" ;;
    app | cluster | dev) requirements="requirements-$1.txt" ;;
    *) fail "scripts/setup.sh takes no argument, 'app', 'cluster' or 'dev', not '$1'" ;;
esac
python="${PYTHON:-python3}"
venv="${VENV:-.venv}"
[[ $venv == /* ]] || venv="$PWD/$venv"
interpreter="$venv/bin/python"
log="$venv/setup.log"
# This file exists while packages are written. If a later call finds it, packages may be incomplete.
unfinished="$venv/setup-unfinished"

# Prints nothing if the interpreter is missing or does not run.
version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

recent_enough() { [[ $1 == 3.* ]] && ((${1#3.} >= 9)); }

# uv has to run: a version manager's shim on PATH may not. Old versions ignore UV_DEFAULT_INDEX.
find_uv() {
    local candidate
    for candidate in uv "$venv/bin/uv"; do
        if [[ "$("$candidate" --version 2>/dev/null)" =~ ^uv\ ([0-9]+)\.([0-9]+) ]] &&
            ((BASH_REMATCH[1] > 0 || BASH_REMATCH[2] >= 9)); then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# Whether an interpreter's environment satisfies the requirements. Prints the first missing package.
# The installers get no source of packages: they fail if a package is missing, and install nothing.
# --dry-run is not used for pip, because only pip 22.2 and later have it.
satisfies() {
    local uv output
    if uv="$(find_uv)"; then
        output="$(env -u UV_FIND_LINKS "$uv" pip install --python "$1" --dry-run --no-config \
            --offline --no-index --no-deps -r "$requirements" 2>&1)" && return
    else
        output="$(PIP_CONFIG_FILE=/dev/null "$1" -m pip --isolated install \
            --no-index --no-deps -r "$requirements" 2>&1)" && return
    fi
    sed -nE 's/.*(distribution found for|you require) ([^ ,]+).*/\2/p' <<<"$output" | head -n 1
    return 1
}

use_active_environment() {
    local environment missing
    [[ -z ${VENV:-} && -z ${PYTHON:-} ]] || return 1
    for environment in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
        [[ -n $environment && $environment != "$venv" ]] || continue
        if ! recent_enough "$(version_of "$environment/bin/python")"; then
            missing="Python 3.9 or later"
        elif missing="$(satisfies "$environment/bin/python")"; then
            printf '%s\n' "$environment/bin/python"
            return
        fi
        say "the active environment $environment lacks ${missing:-pip}: using $venv"
    done
    return 1
}

ready() {
    [[ -x $interpreter && ! -e $unfinished ]] && satisfies "$interpreter" >/dev/null
}

check_folder() {
    mkdir -p "$(dirname "$venv")" 2>/dev/null || true
    [[ -w $(dirname "$venv") ]] || fail "cannot write to $(dirname "$venv"): set VENV to a folder that can be made"
    if [[ -e $venv && ! -e $venv/pyvenv.cfg && ! -e $unfinished ]]; then
        fail "$venv exists and is not a virtual environment: remove it or set VENV to another folder"
    fi
}

check_python() {
    local version held
    version="$(version_of "$python")"
    [[ -n $version ]] || fail "'$python' is not found or does not run: set PYTHON to an interpreter, 3.9 or later"
    recent_enough "$version" || fail "'$python' is Python $version: set PYTHON to an interpreter, 3.9 or later"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$python' has no venv module: install it (Debian, Ubuntu: apt install python$version-venv) or set PYTHON to another interpreter"
    if [[ $requirements == requirements-app.txt && $version == 3.9 ]]; then
        say "error: the web page needs Python 3.10 or later and '$python' is $version: set PYTHON to a later one (PYTHON=python3.11)"
        exit 2
    fi
    held="$(version_of "$interpreter")"
    [[ -z $held || -e $unfinished || $held == "$version" ]] ||
        fail "$venv has Python $held, '$python' has another version: remove it or set VENV to another folder"
}

make_environment() {
    check_python
    mkdir -p "$venv"
    touch "$unfinished"
    find "$venv/" -mindepth 1 ! -path "*/${unfinished##*/}" -delete
    "$python" -m venv "$venv" >"$log" 2>&1 || fail "'$python' could not make $venv: see $log"
}

# Exports pip's settings under uv's names. pip lists a setting as source.name='value'. Settings from
# environment variables come before settings from files.
export_pip_settings() {
    local settings name variable value
    setup_no_index=""
    UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-}}" # the variable's older name
    settings="$("$interpreter" -m pip config list 2>/dev/null)" || return 0
    while read -r name variable; do
        value="$(sed -nE "s/^[^=]*\.$name='(.*)'$/\1/p" <<<"$settings" | head -n 1)"
        value="${value//\\n/ }"
        if [[ $name == find-links ]]; then
            value="$(tr -s ' ' , <<<"${value# }")" # uv separates these by commas
        fi
        [[ -z $value || -n ${!variable:-} ]] || export "$variable=$value"
    done <<'SETTINGS'
index-url UV_DEFAULT_INDEX
extra-index-url UV_INDEX
find-links UV_FIND_LINKS
no-index setup_no_index
constraint UV_CONSTRAINT
trusted-host UV_INSECURE_HOST
proxy ALL_PROXY
cert SSL_CERT_FILE
SETTINGS
    export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}" # like pip: the best version of all indexes
}

install() {
    local lock="requirements-lock.txt" minor uv versions="the newest versions" hint=""
    minor="$(version_of "$interpreter")"
    if [[ ${LATEST:-} != 1 ]] && ((${minor#3.} <= 13)); then # the lock is for Python 3.9 to 3.13
        versions="the versions of $lock" hint="; LATEST=1 takes newer versions"
    else
        lock=""
    fi
    say "installing $requirements, $versions, into $venv (log: $log)"
    uv="$(find_uv)" || {
        "$interpreter" -m pip install --no-input "uv>=0.9" >"$log" 2>&1 || explain_failure
        uv="$venv/bin/uv"
    }
    export_pip_settings
    export UV_CONSTRAINT="$lock${UV_CONSTRAINT:+ $UV_CONSTRAINT}"
    grep -qixE '1|true|yes|on' <<<"$setup_no_index" || setup_no_index=""
    touch "$unfinished"
    if ! "$uv" pip install --python "$interpreter" ${setup_no_index:+--no-index} -r "$requirements" >"$log" 2>&1; then
        grep -q 'Failed to install' "$log" || rm "$unfinished" # nothing was written
        explain_failure
    fi
    rm "$unfinished"
    say "installed in $SECONDS s"
}

explain_failure() {
    if grep -qi 'No space left on device' "$log"; then
        fail "the disk is full: make room or set VENV, UV_CACHE_DIR or TMPDIR to a folder on another disk (log: $log)"
    elif grep -qE 'error sending request|Failed to fetch|Request failed|distribution found for uv|NewConnectionError|NameResolutionError|Timeout|ProxyError' "$log"; then
        fail "the package index cannot be reached: check the network, the proxy or PIP_INDEX_URL (log: $log)"
    fi
    tail -n 15 "$log" | sed 's/^/    /' >&2
    fail "cannot install $requirements: the lines above are the end of $log${hint:-}"
}

set_up() {
    local held
    held="$(version_of "$interpreter")"
    if [[ -e $unfinished || -z $held ]]; then
        [[ ! -e $unfinished ]] || say "an earlier installation did not finish: creating $venv again"
        make_environment
    elif ! recent_enough "$held"; then
        fail "$venv has Python $held: remove it or set VENV to another folder"
    fi
    install
}

if use_active_environment; then
    exit
fi
if [[ -n ${PYTHON:-} && -x $interpreter ]]; then
    check_python
fi
if ! ready; then
    check_folder
    if command -v flock >/dev/null; then
        # The installer inherits the lock. If it outlives this script, the next call still waits.
        exec 9>"$venv.lock"
        flock --nonblock 9 || { say "waiting for another call that installs into $venv" && flock 9; }
    fi
    ready || set_up
fi
printf '%s\n' "$interpreter"
