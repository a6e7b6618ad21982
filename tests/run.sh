#!/usr/bin/env bash
# The checks. What is checked is what git has: a new file counts once it is added, a user's own files never do.
# usage: [WORKERS=2] tests/run.sh [FOLDER OF THE VENV'S COMMANDS] [quick|large|kernels]
#   quick    style, modules in step with notebooks, README.md, notebooks and tests that are fast and need no large model
#   large    notebooks and tests that need MPNet or SmolLM2 (`make models`), and slow tests
#   kernels  tests that compare numbers, under torch's plainest kernels and one thread
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=$(cd "${1:-.venv/bin}" && pwd)
part=${2:-quick}
export PATH="$bin:$PATH" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false MPLBACKEND=agg
unset LRP_LOO_DATA LRP_LOO_TRACEBACK # a user's own
workers=${WORKERS:-2}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(python -c "import os; print(max(1, (os.cpu_count() or 1)//$workers))")}
# a file's tests stay in one process, which shares what they are made of
pytest=(pytest -q -n "$workers" --dist loadfile)

# paths, which have no spaces
notebooks=$(python tests/tracked.py 'nbs/**/*.ipynb')
large=$(grep -lE "load_demo\('(mpnet|smollm2)" $notebooks || true)
# the notebooks as nbdev's commands take them: one expression over their names
expression() { echo "^($(sed 's|.*/||' | paste -sd '|' -))$"; }

run_notebooks() { # names on stdin
    nbdev_test --path nbs --file_re "$(expression)" --n_workers "$workers" --timing "$@"
}

# a content hash of every notebook and module, so that the check holds in an uncommitted tree as well; modules
# that git does not have are among them: a new notebook may just have written one
fingerprint() {
    python -c '
import sys
from hashlib import sha256
from pathlib import Path
homes = ("lrp_loo", "research/lrp_lab")
modules = [p for home in homes for p in Path(home).rglob("*.py") if not any(part.startswith(".") for part in p.parts)]
for p in sorted([*map(Path, sys.argv[1:]), *modules]): print(sha256(p.read_bytes()).hexdigest(), p)' "$@"
}

quick() {
    local lab modules before after
    lab=$(python tests/tracked.py 'research/nbs/*.ipynb')
    modules=$(python tests/tracked.py '*.py' {lrp_loo,tests,docs,research,.ci}/'**/*.py')

    echo "== how the code is written: ruff's rules, and its layout"
    ruff check --force-exclude $modules $notebooks $lab
    ruff format --check --force-exclude $modules $notebooks $lab

    echo "== nbdev_export and nbdev_clean change nothing"
    before=$(fingerprint $notebooks $lab)
    nbdev_export --file_re "$(expression <<<"$notebooks")"
    (cd research && nbdev_export --file_re "$(expression <<<"$lab")")
    python -c 'import sys; from nbdev.clean import nbdev_clean; [nbdev_clean(name) for name in sys.argv[1:]]' $notebooks $lab
    after=$(fingerprint $notebooks $lab)
    if [ "$before" != "$after" ]; then
        echo "These files were out of step. They are right now; look at the difference, commit it and run again:" >&2
        diff <(echo "$before") <(echo "$after") | sed -n 's/^[<>] [0-9a-f]* /  /p' | sort -u >&2
        exit 1
    fi

    echo "== README.md says what nbs/index.ipynb says"
    python .ci/readme.py --check

    echo "== notebooks"
    grep -vxF "${large:-none}" <<<"$notebooks" | run_notebooks

    echo "== tests"
    "${pytest[@]}" tests -m 'not large and not slow'
}

case "$part" in
quick) quick ;;
large)
    echo "== notebooks that need a large model, and slow cells"
    [ -z "$large" ] || run_notebooks --flags slow <<<"$large"
    echo "== tests that need a large model, and slow tests"
    "${pytest[@]}" tests -m 'large or slow'
    ;;
kernels)
    export ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1
    "${pytest[@]}" $(ls tests/test_{removal,exact_loo,fast,decoders,rules,softmax_layers}.py) -m "not large and not slow"
    ;;
*)
    echo "tests/run.sh: no part $part; take quick, large or kernels" >&2
    exit 2
    ;;
esac
