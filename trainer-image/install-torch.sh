#!/bin/sh
# Install torch, numpy and what metrics need into the image: $1 is cpu (Debian's packages) or cuda (the locked wheels of the package index,
# with what S3 needs, since Debian has no s3fs; and InfiniBand, a compiler and torchao).
# An image that has torch already keeps its own. Runs as root while the image is built.
set -eu

variant=$1
case "$variant" in
cpu | cuda) ;;
*)
    echo "VARIANT is '$variant': choose cpu or cuda" >&2
    exit 2
    ;;
esac

# The host's settings, where the build was given them as secrets; a missing file means the defaults.
export APT_CONFIG=/run/secrets/apt.conf PIP_CONFIG_FILE=/run/secrets/pip.conf DEBIAN_FRONTEND=noninteractive

apt_install() {
    apt-get update
    apt-get install --yes --no-install-recommends ca-certificates "$@"
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/*.log
}

if python3 -c 'import torch' 2>/dev/null; then
    echo "torch is in the base image: it is kept"
elif [ "$variant" = cpu ]; then
    apt_install python3-torch python3-numpy python3-prometheus-client
else
    # NCCL opens libibverbs by name, and uses TCP where it is missing; torch.compile and Triton need a compiler and Python.h.
    apt_install python3-venv libibverbs1 ibverbs-providers librdmacm1 gcc libc6-dev python3-dev
    python3 -m venv /opt/torch
    /opt/torch/bin/pip install --disable-pip-version-check --no-cache-dir \
        --require-hashes --requirement "$(dirname "$0")/requirements-cuda.txt"
fi

command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python
# Some of torch asks for the name of the user it runs as. Not every base has useradd.
getent group 1000 >/dev/null || echo 'trainer:x:1000:' >>/etc/group
getent passwd 1000 >/dev/null || echo 'trainer:x:1000:1000::/workspace:/bin/sh' >>/etc/passwd

# Older releases may run code from a file that they load as data (CVE-2025-32434).
python3 -c 'import sys, torch; v = torch.__version__; sys.exit(
    None if tuple(map(int, v.split(".")[:2])) >= (2, 6) else f"torch {v} of the base image is too old: 2.6 or later is needed")'
python3 -c 'import numpy, torch, torch.distributed as d; assert d.is_gloo_available(); print("torch", torch.__version__)'
command -v torchrun
