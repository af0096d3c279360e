# Spack recipe of Trireme, for Spack 1.0 and newer. Never run by us: only its syntax is tested. From the source tree:
#   spack repo add packaging/spack/spack_repo/trireme
#   spack dev-build trireme@0.1.0
from spack.package import *
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage


class Trireme(CMakePackage, CudaPackage):
    """MPI-native training of Transformer language models."""

    homepage = "file://README.md"

    # Built from a source tree (dev-build, develop): there is no archive to fetch yet.
    version("0.1.0")

    variant("openblas", default=False, description="Matrix products by OpenBLAS instead of oneDNN")
    variant("tests", default=False, description="Build the tests")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("python@3.9:", type="run")
    depends_on("py-matplotlib", type="run")
    depends_on("py-jinja2", type="run")

    depends_on("mpi@3.1:")
    depends_on("hdf5+mpi")
    depends_on("onednn", when="~openblas")
    depends_on("openblas threads=openmp", when="+openblas")
    depends_on("eigen@3.3:")
    depends_on("boost@1.70:+program_options")
    depends_on("nlohmann-json@3.9:")
    depends_on("fmt")
    depends_on("xxhash")
    depends_on("openssl")
    depends_on("pcre2")
    depends_on("icu4c")
    depends_on("sentencepiece")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("ncurses")
    depends_on("libarchive")
    depends_on("protobuf")
    depends_on("googletest+gmock", when="+tests")
    depends_on("boost+context", when="+tests")

    depends_on("cuda@12.4:", when="+cuda")
    depends_on("nccl", when="+cuda")
    depends_on("cudnn@9:", when="+cuda")
    conflicts("cuda_arch=none", when="+cuda", msg="Name the GPUs: cuda_arch=80 (A100), 90 (H100, GH200), 100 (B200)")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define_from_variant("TRIREME_CUDA", "cuda"),
            self.define_from_variant("TRIREME_TESTS", "tests"),
            self.define("TRIREME_MATMUL", "openblas" if "+openblas" in self.spec else "onednn"),
        ]
        if "+cuda" in self.spec:
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args
