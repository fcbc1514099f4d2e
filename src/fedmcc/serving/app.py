"""The routes of the service: the page, its files, and the JSON API with its OpenAPI description."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.requests import ClientDisconnect

from fedmcc.errors import InputError
from fedmcc.serving import schemas
from fedmcc.serving.catalogue import Order
from fedmcc.serving.page import asset, render_page
from fedmcc.serving.security import PREDICT, Access, Guard
from fedmcc.serving.service import Service
from fedmcc.serving.uploads import RefusedError, read_upload

Number = Annotated[int, Path(ge=0, le=1_000_000)]
BINARY = {"schema": {"type": "string", "format": "binary"}}
UPLOAD = {
    "requestBody": {
        "required": True,
        "description": "One image file.",
        "content": {"application/octet-stream": BINARY, "image/*": BINARY},
    }
}
FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Failure} for status in (400, 401, 403, 404, 408, 413, 415, 422)
}


def create_app(service: Service, access: Access) -> FastAPI:
    """The application of a service, with its checks."""
    app = FastAPI(
        title="fedmcc",
        version=version("fedmcc"),
        description="Clusters of images by the network of a run.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page would load scripts from other servers
        redoc_url=None,
        lifespan=_closing(service),
        responses=FAILURES,
    )
    app.add_middleware(Guard, access=access)
    _add_page(app)
    _add_reading(app, service)
    _add_predict(app, service)
    _add_changes(app, service)
    _add_errors(app)
    return app


def _closing(service: Service) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    return lifespan


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        return HTMLResponse(render_page())

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        found = asset(name)
        if found is None:
            raise RefusedError(404, "There is no such file.")
        return Response(found.text, media_type=found.media_type)


def _add_reading(app: FastAPI, service: Service) -> None:
    @app.get("/api/run")
    def run() -> schemas.RunSummary:
        """The run that is served, and what the service accepts."""
        return service.summary()

    @app.get("/api/clusters")
    def clusters() -> list[schemas.ClusterSummary]:
        """All clusters, each with its most typical images."""
        return service.clusters()

    @app.get("/api/clusters/{cluster}/members")
    def members(
        cluster: Number,
        order: Order = "typical",
        start: Annotated[int, Query(ge=0, le=1_000_000_000)] = 0,
        count: Annotated[int, Query(ge=1, le=service.limits.max_members)] = 48,
    ) -> schemas.MemberPage:
        """Images of a cluster: the most typical first, the least certain first, or the outliers."""
        return service.members(cluster, order, start, count)


def _add_predict(app: FastAPI, service: Service) -> None:
    limits = service.limits
    slots = asyncio.Semaphore(limits.uploads)
    decoders = ThreadPoolExecutor(limits.decoders, thread_name_prefix="decode")

    @app.post(PREDICT, openapi_extra=UPLOAD)
    async def predict(request: Request) -> schemas.Prediction:
        """The cluster of an image, which is the body of the request."""
        async with slots:
            content = await read_upload(request, limits)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(decoders, service.classify, content)


def _add_changes(app: FastAPI, service: Service) -> None:
    @app.put("/api/clusters/{cluster}/name")
    def rename(cluster: Number, body: schemas.Name) -> list[schemas.ClusterSummary]:
        """Name a cluster; an empty name removes it. Needs the token."""
        return service.rename(cluster, body.name)

    @app.post("/api/clusters/{cluster}/merge")
    def merge(cluster: Number, body: schemas.Merge) -> list[schemas.ClusterSummary]:
        """Merge other clusters into this one. Needs the token."""
        return service.merge(cluster, body.others)


def _add_errors(app: FastAPI) -> None:
    def handle(kind: type[Exception], answer: Callable[[Any], tuple[int, str]]) -> None:
        async def handler(_: Request, error: Exception) -> JSONResponse:
            status, sentence = answer(error)
            return JSONResponse({"detail": sentence}, status)

        app.add_exception_handler(kind, handler)

    handle(RefusedError, lambda error: (error.status, error.sentence))
    handle(InputError, lambda error: (400, str(error)))
    handle(ClientDisconnect, lambda _: (400, "The connection was closed."))
    handle(RequestValidationError, _invalid)


def _invalid(error: RequestValidationError) -> tuple[int, str]:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return 422, f"{place}: {first['msg']}."
