# The operator's image: Python, the locked dependencies and the package; no home folder, no shell in use.
#
#   docker build --tag trainyard/operator:dev .
#
# Behind a proxy, http_proxy and its like are passed as build arguments (Docker knows them; none is kept in the image).
# A private CA, package index or apt mirror comes as a secret, which no layer keeps; each is optional:
#   --secret id=pip.conf,src=…    [global] index-url, and `cert = /run/secrets/ca-bundle` for the CA
#   --secret id=apt.conf,src=…    apt's proxies, and `Acquire::https::CAInfo "/run/secrets/ca-bundle";`
#   --secret id=ca-bundle,src=/etc/ssl/certs/ca-certificates.crt
ARG BASE_IMAGE=debian:trixie-20260918-slim@sha256:a99cfc517144bc59b1978475ec53b46ecabec7e43635402ee5b77cc54cd1b20a

FROM ${BASE_IMAGE} AS python
# The archive of a Debian release keeps one version of a package, so a pinned one would soon be gone.
# hadolint ignore=DL3008
RUN --mount=type=secret,id=apt.conf --mount=type=secret,id=ca-bundle \
    export APT_CONFIG=/run/secrets/apt.conf DEBIAN_FRONTEND=noninteractive \
    && apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/*.log

FROM python AS dependencies
ENV PIP_CONFIG_FILE=/run/secrets/pip.conf \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
# hadolint ignore=DL3008
RUN --mount=type=secret,id=apt.conf --mount=type=secret,id=ca-bundle \
    export APT_CONFIG=/run/secrets/apt.conf DEBIAN_FRONTEND=noninteractive \
    && apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY build-requirements.txt /tmp/
RUN --mount=type=secret,id=ca-bundle \
    --mount=type=secret,id=pip.conf \
    python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install --require-hashes --requirement /tmp/build-requirements.txt \
    && python3 -m venv --without-pip /opt/trainyard
WORKDIR /src
COPY pyproject.toml uv.lock ./
# Exported rather than synced: pip then asks the configured index, where `uv sync` would ask the one in the lock file.
RUN --mount=type=secret,id=ca-bundle \
    --mount=type=secret,id=pip.conf \
    /opt/tools/bin/uv export --frozen --no-dev --no-emit-project --quiet --output-file /tmp/requirements.txt \
    && /opt/tools/bin/pip --python /opt/trainyard/bin/python install --require-hashes --requirement /tmp/requirements.txt

# A stage of its own: a change of the source alone rebuilds only what follows.
FROM dependencies AS package
COPY README.md LICENSE ./
COPY operator operator
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /tmp/wheels . \
    && /opt/tools/bin/pip --python /opt/trainyard/bin/python install \
        --no-index --no-deps --prefix /package /tmp/wheels/*.whl

# What an init container of this image brings into workers whose own images do not hold it.
FROM python AS agent
COPY trainer-image/agent /src/agent
RUN mkdir -p /opt/trainyard/agent \
    && python3 -m zipapp --compress --output /opt/trainyard/agent/agent /src/agent
COPY trainer-image/start-agent.sh /opt/trainyard/agent/start
COPY trainer-image/probe-worker.sh /opt/trainyard/agent/probe

FROM python
COPY --from=dependencies /opt/trainyard /opt/trainyard
COPY --from=agent /opt/trainyard/agent /opt/trainyard/agent
COPY --from=package /package /opt/trainyard
# The root file system may be read-only: every module is compiled already and nothing is written but to stdout.
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
# Kubernetes asks by probes of its own.
HEALTHCHECK NONE
EXPOSE 8080 8081
ENTRYPOINT ["/opt/trainyard/bin/trainyard-operator"]
