#!/bin/bash
# Two nodes with eight GPUs each under SLURM:  sbatch configs/accelerate/slurm.sh configs/NAME.yaml [--key value ...]
# Two minutes before the time limit the run saves, ends, and is queued again; it then continues where it was.
#SBATCH --job-name=vaswani
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

set -u
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export first

# SIGTERM and not SIGUSR1: the launcher passes it on to every process.
again=
trap 'again=yes; kill -TERM "$step"' USR1
srun --kill-on-bad-exit=0 bash -c 'exec accelerate launch --config_file configs/accelerate/nodes2.yaml \
    --num_machines "$SLURM_NNODES" --num_processes $((SLURM_NNODES * SLURM_GPUS_ON_NODE)) \
    --machine_rank "$SLURM_NODEID" --main_process_ip "$first" scripts/train.py "$@"' train "$@" &
step=$!
wait "$step"  # ends when the signal comes,
code=$?
if [ -n "$again" ]; then
    wait "$step"  # and again when everything is saved
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
