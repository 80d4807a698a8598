#!/bin/bash

# Parameters
#SBATCH --account=mine
#SBATCH --array=0-3%3
#SBATCH --constraint=nvlink
#SBATCH --cpus-per-task=4
#SBATCH --error=/home/me/out/jobs/tiny-NAME/%A_%a_0_log.err
#SBATCH --exclude=n1
#SBATCH --gpus-per-node=a100:2
#SBATCH --job-name=tiny-NAME
#SBATCH --mem=16G
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --output=/home/me/out/jobs/tiny-NAME/%A_%a_0_log.out
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --reservation=thesis
#SBATCH --signal=USR2@120
#SBATCH --time=240
#SBATCH --wckey=submitit

# setup
module load cuda
export PYTHONPATH=/home/me/oodbench${PYTHONPATH:+:$PYTHONPATH}

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /home/me/out/jobs/tiny-NAME/%A_%a_%t_log.out --error /home/me/out/jobs/tiny-NAME/%A_%a_%t_log.err --cpus-per-task=4 python -P -u -m submitit.core._submit /home/me/out/jobs/tiny-NAME
