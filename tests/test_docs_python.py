"""docs/python.md names every parameter, method and attribute of what Python programs use."""

import inspect
import re
from pathlib import Path

import numpy as np

from ctrps import Cluster, FMClassifier, FTRLClassifier

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")


def section(title):
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n", 1)[1], flags=re.MULTILINE)[0]


def bare(function):
    """A signature without ``self``, types and results."""
    found = inspect.signature(function)
    kept = [
        p.replace(annotation=p.empty) for p in found.parameters.values() if p.name not in ("self",)
    ]
    return str(found.replace(parameters=kept, return_annotation=found.empty))


def test_parameters_and_defaults_are_those_of_the_classes():
    shared = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section("`FTRLClassifier`"), re.MULTILINE)
    own = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section("`FMClassifier`"), re.MULTILINE)
    for kind, listed in ((FTRLClassifier, shared), (FMClassifier, own + shared)):
        parameters = inspect.signature(kind).parameters
        assert {name: repr(p.default) for name, p in parameters.items()} == dict(listed)
    assert not {*dict(own)} & {*dict(shared)}


def test_methods_and_attributes_are_those_of_fitted_estimators():
    names = re.findall(r"^\| `([^`]+)` \|", section("Methods and attributes of both"), re.MULTILINE)
    model = FTRLClassifier().fit(np.eye(2), [0, 1])
    methods = {
        name + bare(getattr(model, name))
        for name in dir(model)
        if not name.startswith("_") and inspect.ismethod(getattr(model, name))
    }
    attributes = {name for name in dir(model) if name.endswith("_") and not name.startswith("_")}
    attributes |= {"feature_names_in_"}
    assert {*names} == methods | attributes


def test_the_cluster_is_described():
    names = re.findall(r"^\| `([^`]+)` \|", section("`Cluster`"), re.MULTILINE)
    local = bare(Cluster.local)
    assert names == [f"Cluster.local{local}", f"train{bare(Cluster.train)}"]
