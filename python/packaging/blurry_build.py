"""The build backend of pyproject.toml (PEP 517 and 660), in plain Python.

build_wheel builds libblurry with CMake and puts package, library, its shared dependencies and the C headers into one
wheel. cffi reads the headers at run time, so the wheel fits every Python 3. Settings, as `pip install . --config-settings KEY=VALUE`:
    build-dir    CMake's build folder (build-python); one that exists is brought up to date and used
    cmake-args   more arguments for CMake, for example -DBLURRY_CUDA=OFF
"""
import base64
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "blurry"
# Part of every Linux system, and not to be mixed between two of them.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so.*|linux-vdso.*)$")


def _project():
    """The [project] table of pyproject.toml, as far as metadata needs it: name -> text or list of texts."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    table = text.split("[project]", 1)[1].split("[project.optional-dependencies]")
    fields = dict(re.findall(r'^([\w-]+) = "(.*)"$', table[0], re.M))
    fields["dependencies"] = re.findall(r'"([^"]+)"', re.search(r"^dependencies = \[(.*)\]$", table[0], re.M).group(1))
    fields["extras"] = {name: re.findall(r'"([^"]+)"', rest)
                        for name, rest in re.findall(r"^(\w+) = \[(.*)\]$", table[1], re.M)}
    fields["version"] = re.search(r"project\(blurry VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    return fields


def _metadata():
    project = _project()
    lines = ["Metadata-Version: 2.1", "Name: blurry", f"Version: {project['version']}",
             f"Summary: {project['description']}", "License: MIT", f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {name}" for name in project["dependencies"]]
    for extra, names in project["extras"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {name} ; extra == "{extra}"' for name in names]
    readme = (ROOT / "README.md").read_text("utf-8")
    return "\n".join(lines) + "\nDescription-Content-Type: text/markdown\n\n" + readme


def _run(command):
    print("+", shlex.join(command), flush=True)
    subprocess.run(command, check=True, cwd=ROOT)


def _build_library(settings, into):
    """Builds and installs libblurry.so into the folder `into`, with the libraries it needs."""
    settings = settings or {}
    build = ROOT / settings.get("build-dir", "build-python")
    if not (build / "CMakeCache.txt").exists():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        _run(["cmake", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DBLURRY_TESTS=OFF", "-DBLURRY_MPI=OFF",
              *generator, *shlex.split(settings.get("cmake-args", ""))])
    _run(["cmake", "--build", str(build), "--target", "blurry_shared", "--parallel", str(os.cpu_count() or 1)])
    _run(["cmake", "--install", str(build), "--prefix", str(into), "--component", "python", "--strip"])
    for path in into.glob("libblurry.so*"):  # a wheel has no links: the file itself, under the name programs ask for
        if path.is_symlink():
            shutil.move(path.resolve(), path)
    library = next(into.glob("libblurry.so*"))
    needed = subprocess.run(["ldd", str(library)], check=True, capture_output=True, text=True).stdout
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", needed, re.M):
        if not SYSTEM.match(name) and not name.startswith("libblurry"):
            shutil.copyfile(os.path.realpath(path), into / name)


class _Wheel:
    """A wheel being written: a zip file whose last entry lists all others with their hashes."""

    def __init__(self, path, info):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.info, self.record = info, []

    def add(self, name, data, executable=False):
        entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # equal input, equal wheel
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        record = f"{self.info}/RECORD"
        self.zip.writestr(record, "\n".join(self.record + [f"{record},,", ""]))
        self.zip.close()


def _tag():
    return "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _info_files():
    wheel = f"Wheel-Version: 1.0\nGenerator: blurry_build\nRoot-Is-Purelib: false\nTag: {_tag()}\n"
    return {"METADATA": _metadata(), "WHEEL": wheel, "LICENSE": (ROOT / "LICENSE").read_text("utf-8")}


def _package_files():
    """Archive name -> path, of the Python sources and the C headers."""
    files = {f"blurry/{path.relative_to(PACKAGE)}": path for path in sorted(PACKAGE.rglob("*"))
             if path.is_file() and (path.suffix == ".py" or path.name == "py.typed")}
    files.update({f"blurry/include/blurry/{path.name}": path for path in sorted((ROOT / "include/blurry").glob("*.h"))})
    return files


def _write(wheel_directory, fill):
    version = _project()["version"]
    name, info = f"blurry-{version}-{_tag()}.whl", f"blurry-{version}.dist-info"
    wheel = _Wheel(os.path.join(wheel_directory, name), info)
    fill(wheel)
    for file, text in _info_files().items():
        wheel.add(f"{info}/{file}", text.encode())
    wheel.close()
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    def fill(wheel):
        for name, path in _package_files().items():
            wheel.add(name, path.read_bytes())
        with tempfile.TemporaryDirectory() as folder:
            _build_library(config_settings, pathlib.Path(folder))
            for path in sorted(pathlib.Path(folder).iterdir()):
                wheel.add(f"blurry/lib/{path.name}", path.read_bytes(), executable=True)
    return _write(wheel_directory, fill)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """`pip install -e .`: the sources stay where they are; the library is put beside them."""
    library = PACKAGE / "lib"
    shutil.rmtree(library, ignore_errors=True)
    library.mkdir()
    _build_library(config_settings, library)
    return _write(wheel_directory, lambda wheel: wheel.add("blurry.pth", f"{PACKAGE.parent}\n".encode()))


def build_sdist(sdist_directory, config_settings=None):
    """The sources that git tracks, or all but build results where there is no git."""
    version = _project()["version"]
    top = f"blurry-{version}"
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        skip = re.compile(r"(build|dist|runs|\.git|\.cache|demo-out)")
        names = [str(path.relative_to(ROOT)) for path in sorted(ROOT.rglob("*"))
                 if path.is_file() and not skip.match(str(path.relative_to(ROOT)))]
    with tempfile.TemporaryDirectory() as folder:
        info = pathlib.Path(folder) / "PKG-INFO"
        info.write_text(_metadata(), "utf-8")
        with tarfile.open(os.path.join(sdist_directory, f"{top}.tar.gz"), "w:gz") as archive:
            for name in names:
                if (ROOT / name).is_file():
                    archive.add(ROOT / name, f"{top}/{name}")
            archive.add(info, f"{top}/PKG-INFO")
    return f"{top}.tar.gz"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = pathlib.Path(metadata_directory) / f"blurry-{_project()['version']}.dist-info"
    info.mkdir(parents=True)
    for file, text in _info_files().items():
        (info / file).write_text(text, "utf-8")
    return info.name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
