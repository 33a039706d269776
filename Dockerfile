# The server image: `docker build --tag tpuserve-server:0.1.0 .` in the repository's root. It has the interface of
# TensorFlow Serving's image: MODEL_NAME, MODEL_BASE_PATH, gRPC on 8500, REST on 8501, flags after the image's name.
# `--build-arg DEVICE=tpu` or `cuda` adds JAX with that device's client, which runs device programs.

# Python 3.11 with a shared libpython, which the Envoy host embeds. To update, pull the tag, read `docker image inspect
# --format '{{index .RepoDigests 0}}'`, and change tag and digest together.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

FROM ${PYTHON_IMAGE} AS build
# Compile bytecode now, because the image runs with a read-only root. Otherwise each start would compile TensorFlow.
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    UV_COMPILE_BYTECODE=1
ARG DEVICE=none
WORKDIR /build
COPY requirements/bootstrap.lock requirements/server.lock requirements/client.lock requirements/tpu.lock requirements/cuda.lock requirements/
RUN python3 -m venv /opt/uv \
 && /opt/uv/bin/python -m pip install --require-hashes --requirement requirements/bootstrap.lock
RUN case "$DEVICE" in \
      none) device= ;; \
      tpu | cuda) device="requirements/$DEVICE.lock" ;; \
      *) echo "DEVICE is tpu, cuda or none, not '$DEVICE'" >&2; exit 2 ;; \
    esac \
 && python3 -m venv --without-pip /opt/tpuserve \
 && /opt/uv/bin/uv pip sync --python /opt/tpuserve/bin/python --require-hashes \
    requirements/server.lock requirements/client.lock ${device:+"$device"}
# Install offline, so that no package without a hash enters the image. uv itself is the build backend.
COPY formats formats
COPY server server
COPY clients/python clients/python
RUN /opt/uv/bin/uv pip install --python /opt/tpuserve/bin/python --offline --no-deps ./formats ./server ./clients/python

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG DEVICE=none
LABEL org.opencontainers.image.title="tpuserve-server" \
      org.opencontainers.image.description="Batching inference server for TPU-trained models: gRPC and REST, a drop-in for TensorFlow Serving." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      tpuserve.device="${DEVICE}"
COPY --from=build /opt/tpuserve /opt/tpuserve
# Paths of TensorFlow Serving's image, for commands written for it.
RUN ln -s /opt/tpuserve/bin/tensorflow_model_server /usr/bin/tensorflow_model_server \
 && ln -s /opt/tpuserve/bin/tpuserve-serve /usr/bin/tf_serving_entrypoint.sh
# The server writes only to /tmp. HOME is set for libraries that need it.
ENV PATH=/opt/tpuserve/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    MODEL_NAME=model \
    MODEL_BASE_PATH=/models
WORKDIR /tmp
# Use a number, because Kubernetes cannot determine whether a named user is root.
USER 65532:65532
EXPOSE 8500 8501
STOPSIGNAL SIGTERM
# http.client ignores proxy settings. If you change --rest_api_port, pass a matching --health-cmd to `docker run`.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python3", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8501, timeout=4); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["tpuserve-serve"]
