"""GET /version and /discovery: facts that do not change while the daemon runs."""

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

from quart import Quart, Response

import neuron
from neuron.actors.daemon import Daemon
from neuron.api import bodies
from neuron.api.reply import reply_json

_GIT_SECONDS = 2.0


def register(app: Quart, daemon: Daemon) -> None:
    version = version_body()

    @app.get("/version")
    async def versions() -> Response:
        return reply_json(version)

    @app.get("/discovery")
    async def discovery() -> Response:
        return reply_json(daemon.discovery())


@cache
def version_body() -> bodies.VersionBody:
    """Blocking for some milliseconds the first time; called at start-up."""
    sha, dirty = _git()
    return bodies.VersionBody(
        package_version=neuron.__version__,
        git_sha=sha,
        git_dirty=dirty,
        features=("cpu", "gguf", "safetensors"),
        python_version=platform.python_version(),
        torch_version=_distribution("torch"),
        numba_version=_distribution("numba"),
    )


def _distribution(name: str) -> str:
    """From the installed metadata: the daemon itself never imports torch."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _git() -> tuple[str, bool]:
    """Of the checkout that the package runs from; ("unknown", False) outside one."""
    root = Path(neuron.__file__).parent.parent
    if not (root / ".git").exists():
        return "unknown", False
    sha = _run_git(root, "rev-parse", "--short=12", "HEAD")
    return (sha or "unknown", bool(_run_git(root, "status", "--porcelain", "--untracked-files=no")))


def _run_git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
