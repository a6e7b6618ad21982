#!/usr/bin/env bash
# All checks, in order: how the code is written, modules and notebooks in step, every notebook, the
# site, tests/, and some of these under plain kernels.
# usage: tests/run.sh [FOLDER OF THE VENV'S COMMANDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(cd "${1:-.venv/bin}" && pwd)
export PATH="$bin:$PATH" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg

# a content hash for every notebook and module, so the check holds in an uncommitted tree as well
fingerprint() {
    "$bin/python" -c '
from hashlib import sha256
from pathlib import Path
for p in sorted([*Path("nbs").glob("*.ipynb"), *Path("lrp_loo").rglob("*.py")]): print(sha256(p.read_bytes()).hexdigest(), p)'
}

echo "== how the code is written: ruff's rules, its layout, and the measures of .ci/measure.py"
ruff check .
ruff format --check .
python .ci/measure.py --check

echo "== nbdev_export and nbdev_clean change nothing"
before=$(fingerprint)
nbdev_export
nbdev_clean
after=$(fingerprint)
if [ "$before" != "$after" ]; then
    echo "These files were out of step. They are right now; look at the difference, commit it and run again:" >&2
    diff <(echo "$before") <(echo "$after") | sed -n 's/^[<>] [0-9a-f]* /  /p' | sort -u >&2
    exit 1
fi

echo "== README.md says what nbs/index.ipynb says"
python .ci/readme.py --check

echo "== notebooks"
workers=${WORKERS:-2}
threads=$("$bin/python" -c "import os; print(max(1, (os.cpu_count() or 1)//$workers))")
OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads} nbdev_test --path nbs --n_workers "$workers" --timing

echo "== the site builds, and its links, pictures and equations hold"
python .ci/site.py --build

echo "== tests"
pytest tests -q

echo "== where numbers are compared, under the plainest kernels and one thread"
plain=(tests/test_{removal,exact_loo,fast,rules,softmax_layers}.py)
ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 pytest -q "${plain[@]}" -k 'not end_to_end'
