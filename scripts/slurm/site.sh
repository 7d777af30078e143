# A prologue for `hvdtrain sbatch --prologue scripts/slurm/site.sh`: what your site needs before a job starts.
#
#   module purge
#   module load gcc/13 openmpi/5.0
#   source "$HOME/venvs/train/bin/activate"
#   conda activate train                                  # after: source "$(conda info --base)/etc/profile.d/conda.sh"
#
# In a container, put it before the command instead:
#
#   hvdtrain sbatch ... -- apptainer exec --nv image.sif hvdtrain run digits
export OMP_PROC_BIND=false
