"""`dg scaffold defs sharequeue.dagster.ShareGroupComponent orders`: a queue that loads, with its handler."""

from pathlib import Path

import dagster as dg
from pydantic import BaseModel, Field

from sharequeue.starter import Starter


class Params(BaseModel):
    """The parameters of the queue; all of them can be changed later."""

    group: str | None = Field(default=None, description="The share group's id; default: the folder's name.")
    topic: str | None = Field(default=None, description="The topic that it reads; default: the group's id.")


class ShareGroupScaffolder(dg.Scaffolder[Params]):
    """Writes a `defs.yaml` and, next to `defs/`, the module of a sample handler."""

    @classmethod
    def get_scaffold_params(cls) -> type[Params]:
        """Return the model of the parameters."""
        return Params

    def scaffold(self, request: dg.ScaffoldRequest[Params]) -> None:
        """Write both files; an existing module is not changed.

        Raises ValueError for a name that cannot be used, and for a format other than YAML.
        """
        if request.scaffold_format != "yaml":
            raise ValueError(
                "a share group is scaffolded as YAML; for Python see `sharequeue.dagster.share_group_defs`"
            )
        package = _package(request.target_path)
        group = request.params.group or request.target_path.name
        starter = Starter(group, request.params.topic or group, package.name)
        request.target_path.mkdir(parents=True, exist_ok=True)
        (request.target_path / "defs.yaml").write_text(starter.defs_yaml)
        handler = package / f"{starter.name}.py"
        if not handler.exists():
            handler.write_text(starter.handler)


def _package(target: Path) -> Path:
    """Return the folder of the project's package: the one with `defs/`."""
    for folder in target.parents:
        if folder.name == "defs":
            return folder.parent
    raise ValueError(f"{target} is not below a folder `defs`")


__all__ = ["ShareGroupScaffolder"]
