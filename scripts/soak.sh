#!/usr/bin/env bash
# Kills, stops and starves tiny runs for half an hour, and counts what they survived:
#
#   bash scripts/soak.sh                                   100 kills, disks, 15 minutes at random
#   bash scripts/soak.sh --kills 10 --seconds 60 --disks 4  less of each; 0 skips a kind
#
# docs/reliability.md says what is promised. Tests of full disks need root, to mount small disks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

exec "$(bash scripts/setup.sh dev)" -m tests.soak "$@"
