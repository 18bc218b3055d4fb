# All third-party packages to install, with versions. docs/dependencies.md says what each is for.
# Sourced by scripts/install_deps.sh.

# Debian 12 packages for the program: static or headers, except libsentencepiece, which bin/lib carries, and libcurl,
# which the program opens if the machine has it.
# cmake/Install.cmake installs their licences.
DEBIAN_LIBRARIES=(
  nlohmann-json3-dev libyaml-cpp-dev libcli11-dev libspdlog-dev libfmt-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libzstd-dev
  libfreetype-dev libpng-dev libbrotli-dev fonts-dejavu-core
  libsentencepiece-dev libvalijson-dev libcurl4-openssl-dev libssl-dev
)
DEBIAN_BUILD=(
  g++ cmake ninja-build ccache git ca-certificates
  python3 python3-venv
  "${DEBIAN_LIBRARIES[@]}"
)
# clang builds the fuzz targets: g++ has no libFuzzer. clang-format: scripts/checks/check_format.sh.
DEBIAN_TEST=(
  libgtest-dev libbenchmark-dev clang libclang-rt-14-dev clang-format
  openmpi-bin mpich slurm-wlm munge  # rank launchers
  chromium  # draws the pages
  libedit2  # line editor of chat
  libmicrohttpd12  # the HTTP side of serve
  openssl  # creates the certificates of tests
  mmdebstrap zsh  # scripts/try_bare_debian.sh; completion
)
# For writing code (.pre-commit-config.yaml); installed only by --dev.
DEBIAN_DEV=(pre-commit clang-tidy)

# PyPI wheels, installed into .deps/venv. torch brings LibTorch and the CUDA libraries it runs with.
TORCH_VERSION=2.11.0
PYTHON_SERIES="3.10 3.11 3.12 3.13 3.14"  # those with torch wheels
PYARROW_VERSION=24.0.0  # the last series with wheels for all of them; cmake/Arrow.cmake and data/read/table_reader have its series
PYPI_BUILD=("torch==${TORCH_VERSION}" "numpy==2.3.5" "pyarrow==${PYARROW_VERSION}")  # numpy: below 2.4 for mistral-common
PYPI_TEST=(
  transformers==5.17.0 accelerate==1.15.0 peft==0.21.2 safetensors==0.8.0 tokenizers==0.23.3 sentencepiece==0.2.1
  mistral-common==1.13.1 jinja2==3.1.6 pytest==9.0.2 pytest-xdist==3.8.0 pyyaml==6.0.3 bitsandbytes==0.50.2
  tensorboard==2.21.0 openai==3.57.0 gguf==0.19.0 trl==1.16.0
  liger-kernel==0.8.5  # packed by scripts/make_bundle.sh
)

# nvcc for machines without a CUDA toolkit, into .deps/cuda. Unpinned, pip would install 13.5, which clashes with
# torch's 13.0.
CUDA_SERIES=13.0
PYPI_NVCC=(
  "nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-nvvm==13.0.*"
  "nvidia-cuda-cccl==13.0.*" "nvidia-cuda-runtime==13.0.*"
)

# Only headers, into .deps/cudnn-frontend: the wheel's requirements are for its Python half.
PYPI_CUDNN_FRONTEND="nvidia-cudnn-frontend==1.32.0"
