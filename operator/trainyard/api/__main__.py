"""Writes what is generated from the API: `crds/`, the chart's copy, the reference pages, and the pod template's schema.

- `python -m trainyard.api crds [ROOT]`: the CRD, into ROOT/crds and ROOT/helm/trainyard/files
- `python -m trainyard.api docs [ROOT]`: the pages that are made from docstrings, into ROOT/docs/reference
- `python -m trainyard.api template DOCUMENT`: pod_template.json, from a Kubernetes release's api__v1_openapi.json
"""

import json
import sys
from pathlib import Path

import yaml

from trainyard.api.constants import GROUP, PLURAL

FILE = f"{GROUP}_{PLURAL}.yaml"
HEADER = "# Made by `make generate` from operator/trainyard/api; do not edit.\n"


class _Dense(dict[str, object]):
    """An object that is written in YAML's flow style, without a line and an indentation for each of its fields."""


class _Writer(yaml.SafeDumper):
    """Writes dense objects beside all that YAML's safe types allow."""


_Writer.add_representer(
    _Dense, lambda writer, value: writer.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True)
)


def crd_yaml() -> str:
    """The CRD as the text of its file. Kubernetes' own pod template is dense: it is half of the schema."""
    from trainyard.api.crd import custom_resource_definition  # noqa: PLC0415 - needs pod_template.json, which `template` makes

    # Through JSON, so that parts used twice are written out: not every reader of YAML follows anchors.
    written_out = json.loads(json.dumps(custom_resource_definition()))
    spec = written_out["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["template"] = _Dense(spec["template"])
    return HEADER + yaml.dump(written_out, Dumper=_Writer, sort_keys=False, width=1000)


def main(arguments: list[str]) -> int:
    """Run one of the commands."""
    match arguments:
        case ["crds", *rest]:
            root = Path(rest[0]) if rest else Path.cwd()
            for folder in (root / "crds", root / "helm/trainyard/files"):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / FILE).write_text(crd_yaml())
        case ["docs", *rest]:
            from trainyard.api.reference import pages  # noqa: PLC0415 - needs the CRD, see above

            folder = (Path(rest[0]) if rest else Path.cwd()) / "docs/reference"
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in pages().items():
                (folder / name).write_text(text)
        case ["template", document]:
            from trainyard.api.pod_template import from_openapi  # noqa: PLC0415 - beside its sibling above

            schema = from_openapi(json.loads(Path(document).read_text()))
            text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
            Path(__file__).with_name("pod_template.json").write_text(text + "\n")
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
