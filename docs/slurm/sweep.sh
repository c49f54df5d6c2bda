#!/bin/bash
# A sweep over several machines: sbatch docs/slurm/sweep.sh experiments/fig3a.yaml results/fig3a.db
# Each rank trains on the cores it was given; rank 0 keeps the database, which must lie on a file system that all nodes see.
# When the time is over, submit the same line again: it goes on where it stopped.
#SBATCH --job-name=blurry-sweep
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00

set -eu
file=${1:?usage: sbatch sweep.sh FILE.yaml FILE.db [options of blurry sweep]}
database=${2:?usage: sbatch sweep.sh FILE.yaml FILE.db [options of blurry sweep]}
shift 2
mkdir -p "$(dirname "$database")"

# One rank per node, one single-thread run per core. --enable-recovery keeps the other ranks when one is lost; the limit
# pauses the sweep ten minutes before the job's time is over, so that runs under way save a checkpoint.
exec mpirun --enable-recovery --map-by "ppr:1:node:PE=$SLURM_CPUS_PER_TASK" \
  blurry sweep "$file" --db "$database" --jobs "$SLURM_CPUS_PER_TASK" --limit-seconds $((12 * 3600 - 600)) "$@"

# GPUs: one rank per GPU, 32 runs at once on each.
#   #SBATCH --gpus-per-node=4 --ntasks-per-node=4
#   mpirun --enable-recovery bash -c 'CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec blurry sweep "$0" --db "$1" \
#     --device cuda --jobs 32' "$file" "$database"
# One large training, data-parallel over all ranks:
#   mpirun blurry train text book.txt --preset text-small --batch 256 --device cuda --out runs/book
