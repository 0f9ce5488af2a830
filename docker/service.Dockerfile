# The rendezvous service and the controller of jobs on Kubernetes: no torch.
ARG BASE=docker.io/library/python:3.11-slim
FROM ${BASE} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
COPY . /src
RUN python3 -m venv /opt/elastic \
 && /opt/elastic/bin/pip install --no-cache-dir --constraint /src/constraints.txt '/src[etcd,kubernetes]'

FROM ${BASE}
COPY --from=build /opt/elastic /opt/elastic
ENV PATH=/opt/elastic/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 29600
ENTRYPOINT ["elastic-rendezvous"]
