#!/usr/bin/env bash
# The lab: its notebooks and its tests; or each of its studies on one text alone, and
# whether what the pages say is what the rows say.
# usage: [WORKERS=2] research/run.sh [FOLDER OF THE VENV'S COMMANDS] [smoke]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(cd "${1:-.venv/bin}" && pwd)
export PATH="$bin:$PATH" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg
unset LRP_LOO_DATA LRP_LOO_TRACEBACK # a user's own

workers=${WORKERS:-2}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(python -c "import os; print(max(1, (os.cpu_count() or 1)//$workers))")}
if [ "${2:-}" = smoke ]; then
    pytest research/tests/test_{smoke,claims,ledger,mnist_prose}.py -q -n "$workers"
    exit
fi
# as nbdev's commands take them: one expression over the names that git has
named="^($(python tests/tracked.py 'research/nbs/*.ipynb' | sed 's|^research/nbs/||' | paste -sd '|' -))$"
(cd research && nbdev_test --path nbs --file_re "$named" --n_workers "$workers" --timing)
pytest research/tests -q -n "$workers" --dist loadfile
