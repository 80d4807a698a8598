#!/bin/bash

# Parameters
#SBATCH --array=0-1%2
#SBATCH --comment=mine
#SBATCH --cpus-per-task=2
#SBATCH --error=/home/me/out/jobs/tiny-NAME/%A_%a_0_log.err
#SBATCH --gpus-per-node=1
#SBATCH --job-name=tiny-NAME
#SBATCH --mem=512M
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --output=/home/me/out/jobs/tiny-NAME/%A_%a_0_log.out
#SBATCH --partition=low
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=10
#SBATCH --wckey=submitit

# setup
date
export PYTHONPATH=/home/me/oodbench:/home/me${PYTHONPATH:+:$PYTHONPATH}

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /home/me/out/jobs/tiny-NAME/%A_%a_%t_log.out --error /home/me/out/jobs/tiny-NAME/%A_%a_%t_log.err --export=ALL --cpus-per-task=2 python -P -u -m submitit.core._submit /home/me/out/jobs/tiny-NAME
