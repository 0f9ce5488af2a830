# Workers, and the controller of their job: the launcher, torch, the model zoo. Build your own FROM it, or install
# elastic-launch[torch,kubernetes] into an image of yours.
ARG BASE=docker.io/library/python:3.11-slim
FROM ${BASE} AS build
# Without CUDA: --build-arg TORCH=torch==2.13.0+cpu, and PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS where that can be found.
ARG TORCH=torch==2.13.0
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
COPY . /src
RUN python3 -m venv /opt/elastic \
 && /opt/elastic/bin/pip install --no-cache-dir --constraint /src/constraints.txt "${TORCH}" '/src[torch,zoo,kubernetes]'

FROM ${BASE}
COPY --from=build /opt/elastic /opt/elastic
ENV PATH=/opt/elastic/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["elastic-launch"]
CMD ["--help"]
