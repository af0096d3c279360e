-- Lmod module of a Trireme built in its own folder on Debian or Ubuntu:
--   module use TRIREME/modules; module load trireme/debian
help([[Trireme trains Transformer language models through MPI: srun trireme -i deck.in]])
whatis("Name: trireme")
whatis("Description: MPI-native training of Transformer language models")

local root = myFileName():gsub("/modules/trireme/[^/]*$", "")
prepend_path("PATH", pathJoin(root, "build"))
setenv("TRIREME_ROOT", root)
-- One rank a core unless the job says otherwise.
if not os.getenv("OMP_NUM_THREADS") then
  setenv("OMP_NUM_THREADS", "1")
end
