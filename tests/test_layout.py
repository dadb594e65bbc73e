"""Rules of the repository that a machine can hold: sizes, forbidden words, calls and imports."""

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import yaml
import zmq

from ctrps import configfile

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ctrps"
KERNELS = PACKAGE / "kernels"
SCREEN = [PACKAGE / "screen.py", *PACKAGE.glob("cli*.py")]
MODULES = sorted(PACKAGE.rglob("*.py"))
COMPILERS = {"njit", "jit", "vectorize", "guvectorize", "generated_jit", "cfunc", "stencil"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def name_of(node: ast.expr) -> str:
    """Last word of what is called or decorates: ``njit`` of ``numba.njit(cache=True)``."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(tree(path)):
        if isinstance(node, Function):
            yield node


def lines_of(function: Function) -> int:
    """Lines of a function with its decorators and signature, without its docstring."""
    size = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        size -= (first.end_lineno or 0) - first.lineno + 1
    return size


def kernels() -> Iterator[tuple[Path, Function, ast.expr]]:
    for path in sorted(KERNELS.rglob("*.py")):
        for function in functions(path):
            for decorator in function.decorator_list:
                if name_of(decorator) in COMPILERS:
                    yield path, function, decorator


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_the_package_names_no_data_set():
    word = "taobao"
    bad = [p for p in PACKAGE.rglob("*") if word in p.name.lower()]
    bad += [p for p in MODULES if word in p.read_text(encoding="utf-8").lower()]
    assert not bad


def test_only_the_command_line_prints_or_ends_the_process():
    bad = [
        place(path, node)
        for path in MODULES
        if path not in SCREEN
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Call) and name_of(node) == "print")
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.exit")
        or (isinstance(node, ast.Name) and node.id in ("exit", "quit", "SystemExit"))
    ]
    assert not bad


def test_no_test_sleeps():
    # Put together here, so that this line does not find itself.
    call = "sleep" + "("
    bad = [p for p in (ROOT / "tests").rglob("*.py") if call in p.read_text(encoding="utf-8")]
    assert not bad


def test_nothing_unpickles():
    modules = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    calls = {"recv_pyobj", "send_pyobj", "read_pickle", "to_pickle", "recv_serialized"}
    bad = [str(path) for path in MODULES if imported(path) & modules]
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and node.attr in calls:
                bad.append(place(path, node))
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                    bad.append(place(path, node.value))
    assert not bad


SAFE_LOADERS = ("yaml.SafeLoader", "yaml.BaseLoader", "yaml.CBaseLoader")


def test_no_text_becomes_code_or_a_command():
    calls = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load"}
    calls |= {"yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "pd.eval", "pandas.eval"}
    bad = []
    for path in [*MODULES, *(ROOT / "benchmarks").rglob("*.py")]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in calls:
                bad.append(place(path, node))
            elif isinstance(node, ast.keyword) and node.arg == "shell":
                bad.append(place(path, node.value))
            elif isinstance(node, ast.keyword) and node.arg == "Loader":
                # Whatever our loader is, what it makes is what a safe one makes.
                if ast.unparse(node.value) not in ("_Loader", *SAFE_LOADERS):
                    bad.append(place(path, node.value))
    assert not bad
    assert issubclass(configfile._Loader, yaml.SafeLoader)


@pytest.mark.parametrize("library", [zmq, msgpack])
def test_libraries_that_read_the_wire_unpickle_only_where_they_say_so(library):
    """And where they do, the calls have names that ``test_nothing_unpickles`` looks for."""
    allowed = {"recv_pyobj", "send_pyobj"}
    bad = []
    for path in Path(library.__file__).parent.rglob("*.py"):
        for function in functions(path):
            uses = {ast.unparse(node.value) for node in attributes(function)}
            if uses & {"pickle", "marshal", "shelve"} and function.name not in allowed:
                bad.append(f"{path}: {function.name}")
    assert not bad


def attributes(function: Function) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Attribute))


@pytest.mark.parametrize("folder", ["sample", "feature_extract", "conf/cluster"])
def test_scripts_are_a_few_lines(folder):
    for path in (ROOT / folder).rglob("*.sh"):
        lines = path.read_text(encoding="utf-8").splitlines()
        code = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        assert len(code) <= 30, path


def test_every_kernel_has_a_slow_twin():
    twins = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").glob("naive*.py"))
    named = set(re.findall(r"\w+", twins))
    public = {function.name for _, function, _ in kernels() if not function.name.startswith("_")}
    assert not public - named


def test_kernels_are_cached_release_the_lock_and_keep_ieee_arithmetic():
    bad = []
    for path, function, decorator in kernels():
        given = {}
        if isinstance(decorator, ast.Call) and not decorator.args:
            values = [(k.arg, k.value) for k in decorator.keywords]
            given = {arg: v.value for arg, v in values if isinstance(v, ast.Constant)}
        if given.get("cache") is not True or given.get("nogil") is not True or "fastmath" in given:
            bad.append(f"{place(path, function)}: {function.name}")
    assert not bad
    assert not [p for p in KERNELS.rglob("*.py") if "fastmath=" in p.read_text(encoding="utf-8")]


def test_kernels_live_in_one_package():
    bad = [
        place(path, node)
        for path in MODULES
        if KERNELS not in path.parents
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Name) and node.id in COMPILERS)
        or (isinstance(node, ast.Attribute) and node.attr in COMPILERS)
    ]
    assert not bad


def test_files_have_at_most_500_lines():
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert not {str(path): size for path, size in sizes.items() if size > 500}


def test_functions_are_short():
    sizes = {
        f"{place(path, function)} {function.name}": lines_of(function)
        for path in MODULES
        for function in functions(path)
    }
    assert not {where: size for where, size in sizes.items() if size > 80}
    assert statistics.median(sizes.values()) <= 12
    longest = sorted(sizes.items(), key=lambda item: item[1], reverse=True)
    p90 = longest[len(longest) // 10]
    assert p90[1] <= 40, longest[: len(longest) // 10 + 1]


def test_every_module_says_what_it_is_for():
    assert not [str(path) for path in MODULES if not ast.get_docstring(tree(path))]


def test_nothing_is_left_to_do():
    mark = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert not [str(p) for p in MODULES if mark.search(p.read_text(encoding="utf-8"))]
