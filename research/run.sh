#!/usr/bin/env bash
# The lab: its notebooks and its tests; or, in a minute, each of its studies on one text.
# usage: [WORKERS=2] research/run.sh [FOLDER OF THE VENV'S COMMANDS] [smoke]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(cd "${1:-.venv/bin}" && pwd)
export PATH="$bin:$PATH" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg
unset LRP_LOO_DATA LRP_LOO_TRACEBACK # a user's own

if [ "${2:-}" = smoke ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
    python -m lrp_lab reproduce all --limit 1 --data embedded --out "$out"
    exit
fi

workers=${WORKERS:-2}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(python -c "import os; print(max(1, (os.cpu_count() or 1)//$workers))")}
# as nbdev's commands take them: one expression over the names that git has
named="^($(python tests/tracked.py 'research/nbs/*.ipynb' | sed 's|^research/nbs/||' | paste -sd '|' -))$"
(cd research && nbdev_test --path nbs --file_re "$named" --n_workers "$workers" --timing)
pytest research/tests -q -n "$workers" --dist loadfile
