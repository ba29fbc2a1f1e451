#!/usr/bin/env bash
# Test and measure on a machine with a CUDA device; write everything into the folder given.
#   bash tests/gpu/measure.sh OUTPUT
set -uo pipefail
cd "$(dirname "$0")/../.."
output=$(mkdir -p "${1:?name an output folder}" && cd "$1" && pwd)
run() {
    local name=$1
    shift
    echo "+ $*"
    timeout 600 "$@" 2>&1 | tee "$output/$name.txt" | tail -n 15
}
python - <<'PY' | tee "$output/versions.txt"
import accelerate, torch, transformers
print("torch", torch.__version__, "transformers", transformers.__version__, end=" ")
print("accelerate", accelerate.__version__, torch.cuda.get_device_name())
PY
run tests python -m pytest -q -m gpu tests
run probe python -m tests.gpu.probe
run bench python -m finetune bench --shape roberta-base --task nli --phases train,predict
run bench128 python -m finetune bench --shape roberta-base --task nli --phases train --batch-size 128
# One process per device under DDP, on a tiny random model.
model=$(mktemp -d)
python -c "from tests.tiny import save_tiny_checkpoint; save_tiny_checkpoint('$model', 'roberta')"
devices=$(python -c "import torch; print(torch.cuda.device_count())")
run ddp accelerate launch --num_processes "$devices" -m finetune classify --model "$model" \
    --data examples/data/sentiment --epochs 1 --out "$output/ddp-run"
if [ "$devices" -gt 1 ]; then
    run fsdp accelerate launch --use_fsdp --fsdp_version 2 --num_processes "$devices" -m finetune \
        classify --model "$model" --data examples/data/sentiment --epochs 1 --out "$output/fsdp-run"
fi
