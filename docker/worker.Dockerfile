# Workers: the launcher, torch and the model zoo. Build your own FROM it, or install elastic-launch into an image of yours.
ARG BASE=docker.io/library/python:3.11-slim
FROM ${BASE} AS build
# With a CPU build: --build-arg TORCH=torch==2.13.0+cpu and an index that has it.
ARG TORCH=torch==2.13.0
COPY . /src
RUN python3 -m venv /opt/elastic \
 && /opt/elastic/bin/pip install --no-cache-dir --constraint /src/constraints.txt "${TORCH}" '/src[torch,zoo]'

FROM ${BASE}
COPY --from=build /opt/elastic /opt/elastic
ENV PATH=/opt/elastic/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["elastic-launch"]
CMD ["--help"]
