#!/bin/bash
# Train on several machines of a SLURM cluster; the job is put back into the queue until training has ended.
#   sbatch examples/launch/slurm.sh nli --model roberta-base --out /shared/runs/mnli
# All machines must see --out. Two minutes before the time limit the job gets SIGTERM: training writes its
# checkpoint, and the next start of the job continues from it.
#SBATCH --job-name=finetune
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
stopped=""
trap 'stopped=yes; kill -TERM "$training"' TERM

srun torchrun \
    --nnodes "$SLURM_NNODES" \
    --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$first:${MASTER_PORT:-29500}" \
    --rdzv-id "$SLURM_JOB_ID" \
    -m finetune "$@" --resume auto &
training=$!
wait "$training"
code=$?
if [ -n "$stopped" ]; then
    wait "$training"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
