"""What requests and answers look like: the models behind the OpenAPI description, with examples."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..names import JOB_NAME

JobName = Annotated[
    str, Path(pattern=f"^{JOB_NAME}$", max_length=63, description="The job's name.", examples=["digits"])
]
Size = Annotated[int, Field(ge=1, le=1 << 20, strict=True)]
Word = Annotated[str, Field(min_length=1, max_length=256, strict=True)]

_WORKER = "4f0c2f6d2a1b4a53b9a0d3e2f1c0ab12"
_AGENT = "0d3e2f1c0ab124f0c2f6d2a1b4a53b9a"


class Problem(BaseModel):
    """Every answer that is an error."""

    detail: str = Field(examples=["job 'digits' is not known here"])


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DrainWorker(_Request):
    worker: Word = Field(
        description="The worker that is to leave, as the job's description names it.", examples=[_WORKER]
    )


class DrainHost(_Request):
    host: Word = Field(description="All workers of this host are to leave.", examples=["node-3"])


class _Gone(_Request):
    reason: str = Field(default="", max_length=256, description="For people.", examples=["its pod was evicted"])


class GoneAgent(_Gone):
    agent: Word = Field(description="An agent whose host is lost, with all its workers.", examples=[_AGENT])


class GonePod(_Gone):
    pod: Word = Field(
        description="The unique id of a Kubernetes pod that is lost.", examples=["1b4a53b9-a0d3-4e2f-81c0-ab124f0c2f6d"]
    )


class Resize(_Request):
    """What is left out stays as it is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    min: Size | None = Field(default=None, description="Fewest workers that train; below it they wait.", examples=[2])
    max: Size | None = Field(default=None, description="Most workers.", examples=[8])

    @model_validator(mode="after")
    def _says_something(self) -> Resize:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        return self


class Draining(BaseModel):
    draining: str = Field(examples=["node-3"])


class Loss(BaseModel):
    gone: str = Field(examples=[_AGENT])


class Removal(BaseModel):
    job: str = Field(examples=["digits"])
    state: str = Field(description='"stopping" or "removed".', examples=["stopping"])


class Health(BaseModel):
    status: str = Field(examples=["ok"])
    jobs: int = Field(examples=[1])
    paused_seconds: float = Field(description="For how long this process has not run, in all.", examples=[0.0])


class Readiness(BaseModel):
    status: str = Field(examples=["ready"])


class Spec(BaseModel):
    min: int = Field(default=1, examples=[2])
    max: int = Field(default=1, examples=[4])
    max_restarts: int = Field(default=0, examples=[3])
    min_timeout: float = Field(default=0.0, examples=[600.0])


class JobSummary(BaseModel):
    job: str = Field(examples=["digits"])
    state: str = Field(
        description="loading, starting, forming, running, parked, lost, stopping, finishing, done or failed",
        examples=["running"],
    )
    generation: int = Field(default=0, description="The newest announced one.", examples=[7])
    world_size: int = Field(default=0, description="Members of that generation.", examples=[4])
    spec: Spec = Spec()


class JobList(BaseModel):
    jobs: list[JobSummary]


class Failure(BaseModel):
    code: int = Field(examples=[75])
    reason: str = Field(examples=["fewer than 2 workers for 600 s"])


class WorkerView(BaseModel):
    """`rank` is -1 for a worker that is no member. `step` is the number of the step that it is in."""

    worker: str = Field(examples=[_WORKER])
    host: str = Field(examples=["node-3"])
    pod: str = Field("", description="The unique id of its Kubernetes pod, if it runs in one.", examples=[""])
    agent: str = Field(examples=[_AGENT])
    local_rank: int = Field(examples=[0])
    rank: int = Field(examples=[2])
    phase: str = Field(description="preparing, ready, member, evicted or finished", examples=["member"])
    presence: str = Field(description="here, suspected or absent", examples=["here"])
    lineage: int = Field(description="The last generation that it has formed.", examples=[7])
    leaving: bool = Field(examples=[False])
    released: bool = Field(examples=[False])
    step: int = Field(default=0, examples=[1201])
    steps_per_second: float = Field(default=0.0, examples=[3.2])
    samples_per_second: float = Field(
        0.0, description="Samples that the whole job applies, as this worker sees it.", examples=[819.2]
    )


class JobView(JobSummary):
    formed: int = Field(default=0, description="The last durable generation.", examples=[7])
    generation_state: str = Field(
        default="none", description="none, forming, persisting or formed", examples=["formed"]
    )
    parked: bool = Field(default=False, description="Whether the members wait because they are fewer than min.")
    cause: str = Field(default="", examples=["joined"])
    reason: str = Field(default="", examples=["a worker joined from node-3"])
    agents: int = Field(default=0, description="Agents that are connected.", examples=[4])
    standby: int = Field(default=0, description="Workers that wait to be members.", examples=[0])
    step: int = Field(default=0, examples=[1201])
    steps_per_second: float = Field(default=0.0, examples=[3.2])
    samples_per_second: float = Field(default=0.0, examples=[819.2])
    crashes: int = Field(default=0, description="Crashes that count against max_restarts.", examples=[0])
    failure: Failure | None = None
    workers: list[WorkerView] = []


class EventView(BaseModel):
    """Something that has happened. What else is known of it depends on its kind."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(examples=["9f86d081-42"])
    time: float = Field(description="Seconds since 1970.", examples=[1700000000.0])
    kind: str = Field(examples=["announced"])
    text: str = Field(examples=["generation 7, 4 workers: a worker joined from node-3"])


class EventList(BaseModel):
    job: str = Field(examples=["digits"])
    events: list[EventView]


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The errors that an address may answer with, for its description; those that any may answer with are among them."""
    told = {
        400: "The body is not JSON.",
        401: "The token is missing or wrong.",
        404: "There is no such job, worker or host here.",
        409: "The job is over or ends already.",
        413: "The body is too long.",
        422: "The request has parts that cannot be.",
        503: "This server cannot do that at present: try again.",
    }
    return {code: {"model": Problem, "description": told[code]} for code in (401, 422, *codes)}
