# The images, one for each target. The last one, `cpu`, is the default: `docker build --tag tpuserve-server:0.1.0 .` in
# the repository's root. The servers have the interface of TensorFlow Serving's image: MODEL_NAME, MODEL_BASE_PATH, gRPC
# on 8500, REST on 8501, flags after the image's name. docs/how-to/deploy/images.md describes the targets.

# To update, pull the tag, read `docker image inspect --format '{{index .RepoDigests 0}}'`, and change tag and digest
# together.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

# uv, and an empty environment. Stages that install are not in an image.
FROM ${PYTHON_IMAGE} AS installer
# Compile bytecode now, because the image runs with a read-only root. Otherwise each start would compile TensorFlow.
ENV PATH=/opt/uv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    UV_CACHE_DIR=/var/cache/uv \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON=/opt/tpuserve/bin/python
WORKDIR /build
COPY requirements/bootstrap.lock requirements/
RUN python3 -m venv /opt/uv \
 && python3 -m venv --without-pip /opt/tpuserve \
 && /opt/uv/bin/python -m pip install --require-hashes --requirement requirements/bootstrap.lock

# The server's wheel with its request path compiled. The compiler, and the packages that it reads, are in no image.
FROM installer AS compiler
COPY requirements/compiler.lock requirements/
RUN uv pip sync --require-hashes requirements/compiler.lock
COPY formats formats
COPY clients/command clients/command
COPY server server
COPY deploy/installation/compiled.py deploy/installation/
RUN /opt/tpuserve/bin/python -m deploy.installation.compiled /opt/compiled

# The projects alone, so that a change of their code leaves the large layer of the packages as it is. uv itself is the
# build backend. Offline, because no package without a hash may enter an image. Without the sources of the workspace,
# which is not there.
FROM installer AS server-project
COPY formats formats
COPY clients/command clients/command
COPY --from=compiler /opt/compiled compiled
COPY clients/python clients/python
RUN uv pip install --offline --no-deps --no-sources --prefix /opt/project ./formats ./clients/command ./compiled/*.whl ./clients/python \
 && rm /opt/project/.lock

FROM installer AS exporter-project
COPY formats formats
COPY clients/command clients/command
COPY exporter exporter
COPY clients/python clients/python
# The exporter links to these files.
COPY deploy/kubernetes deploy/kubernetes
RUN uv pip install --offline --no-deps --no-sources --prefix /opt/project ./formats ./clients/command ./exporter ./clients/python \
 && rm /opt/project/.lock

FROM installer AS loadtests-project
COPY formats formats
COPY clients/command clients/command
COPY loadtests loadtests
COPY clients/python clients/python
RUN uv pip install --offline --no-deps --no-sources --prefix /opt/project ./formats ./clients/command ./loadtests ./clients/python \
 && rm /opt/project/.lock

# The packages of each target. A target uninstalls declared dependencies that its programs do not import: SciPy, which
# JAX needs only for LAPACK on the CPU, and libclang of TensorFlow.
FROM installer AS slimmer
COPY deploy/image/slim.py deploy/image/symbols.py deploy/image/

FROM slimmer AS pjrt-packages
COPY requirements/pjrt.lock requirements/client.lock requirements/
RUN uv pip sync --require-hashes requirements/pjrt.lock requirements/client.lock \
 && uv pip uninstall scipy \
 && python3 -m deploy.image.slim /opt/tpuserve

FROM slimmer AS tpu-packages
COPY requirements/server.lock requirements/tpu.lock requirements/client.lock requirements/
RUN uv pip sync --require-hashes requirements/server.lock requirements/tpu.lock requirements/client.lock \
 && uv pip uninstall libclang scipy \
 && python3 -m deploy.image.slim /opt/tpuserve

FROM slimmer AS cuda-packages
COPY requirements/server.lock requirements/cuda.lock requirements/client.lock requirements/
RUN uv pip sync --require-hashes requirements/server.lock requirements/cuda.lock requirements/client.lock \
 && uv pip uninstall libclang scipy \
 && python3 -m deploy.image.slim /opt/tpuserve

FROM slimmer AS exporter-packages
COPY requirements/exporter.lock requirements/client.lock requirements/
RUN uv pip sync --require-hashes requirements/exporter.lock requirements/client.lock \
 && uv pip uninstall libclang \
 && python3 -m deploy.image.slim /opt/tpuserve

FROM slimmer AS loadtests-packages
COPY requirements/loadtests.lock requirements/client.lock requirements/
RUN uv pip sync --require-hashes requirements/loadtests.lock requirements/client.lock \
 && python3 -m deploy.image.slim /opt/tpuserve

FROM slimmer AS cpu-packages
COPY requirements/server.lock requirements/client.lock requirements/
RUN uv pip sync --require-hashes requirements/server.lock requirements/client.lock \
 && uv pip uninstall libclang \
 && python3 -m deploy.image.slim /opt/tpuserve

# Properties of all images.
FROM ${PYTHON_IMAGE} AS base
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
COPY LICENSE /licenses/LICENSE
# No program of an image changes its user. Without setuid files, a process cannot gain rights through one.
RUN find / -xdev -type f -perm /6000 -exec chmod a-s {} +
# Programs write only to /tmp and to mounts. HOME is set for libraries that need it.
ENV PATH=/opt/tpuserve/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
WORKDIR /tmp
STOPSIGNAL SIGTERM

FROM base AS server
# Paths of TensorFlow Serving's image, for commands written for it.
RUN ln -s /opt/tpuserve/bin/tensorflow_model_server /usr/bin/tensorflow_model_server \
 && ln -s /opt/tpuserve/bin/tpuserve-serve /usr/bin/tf_serving_entrypoint.sh
ENV MODEL_NAME=model \
    MODEL_BASE_PATH=/models
EXPOSE 8500 8501
# It finds the addresses of the server by itself: other ports, a UNIX socket, TLS.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["tpuserve-health"]
ENTRYPOINT ["tpuserve-serve"]

FROM base AS tool
ENTRYPOINT ["tpuserve"]

# Each target sets the user after it has copied its files. The number is there because Kubernetes cannot determine
# whether a named user is root.
FROM server AS pjrt
LABEL org.opencontainers.image.title="tpuserve-server-pjrt" \
      org.opencontainers.image.description="Batching inference server for device programs, without TensorFlow: gRPC and REST."
COPY --from=pjrt-packages /opt/tpuserve /opt/tpuserve
COPY --from=server-project /opt/project /opt/tpuserve
USER 65532:65532
# The image has a client for the CPU alone, and no TensorFlow to fall back to.
ENTRYPOINT ["tpuserve-serve", "--device=cpu"]

FROM server AS tpu
LABEL org.opencontainers.image.title="tpuserve-server-tpu" \
      org.opencontainers.image.description="Batching inference server on TPUs: gRPC and REST, a drop-in for TensorFlow Serving."
COPY --from=tpu-packages /opt/tpuserve /opt/tpuserve
COPY --from=server-project /opt/project /opt/tpuserve
USER 65532:65532

FROM server AS cuda
LABEL org.opencontainers.image.title="tpuserve-server-cuda" \
      org.opencontainers.image.description="Batching inference server on NVIDIA GPUs: gRPC and REST, a drop-in for TensorFlow Serving."
COPY --from=cuda-packages /opt/tpuserve /opt/tpuserve
COPY --from=server-project /opt/project /opt/tpuserve
USER 65532:65532

FROM tool AS exporter
LABEL org.opencontainers.image.title="tpuserve-exporter" \
      org.opencontainers.image.description="Checkpoint in, checked and versioned SavedModel out."
COPY --from=exporter-packages /opt/tpuserve /opt/tpuserve
COPY --from=exporter-project /opt/project /opt/tpuserve
USER 65532:65532

FROM tool AS loadtests
LABEL org.opencontainers.image.title="tpuserve-loadtests" \
      org.opencontainers.image.description="Load tests for model servers over gRPC and REST."
COPY --from=loadtests-packages /opt/tpuserve /opt/tpuserve
COPY --from=loadtests-project /opt/project /opt/tpuserve
USER 65532:65532

FROM server AS cpu
LABEL org.opencontainers.image.title="tpuserve-server" \
      org.opencontainers.image.description="Batching inference server for TPU-trained models: gRPC and REST, a drop-in for TensorFlow Serving."
COPY --from=cpu-packages /opt/tpuserve /opt/tpuserve
COPY --from=server-project /opt/project /opt/tpuserve
USER 65532:65532
