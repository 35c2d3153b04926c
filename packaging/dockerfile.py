"""Runs the steps of a Dockerfile in plain folders, for machines without an engine.

    dockerfile.py CONTEXT WORK [--binary FILE]

It knows the instructions and options that this repository's Dockerfile uses, and stops at
any other: a step that is passed over in silence would make the trial worthless. Base images
are stood in for by Debian's own packages (BASES below). The last stage ends up in WORK/root,
what the image says about itself in WORK/image.sh. With --binary the stages before the last
one are not run: FILE stands for the /headwall that they make, an empty file for the rest.

try-dockerfile.sh calls it as root in a mount namespace of its own.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path


def fail(message):
    sys.exit(f"dockerfile.py: {message}")


# --- reading ---------------------------------------------------------------------------------


def instructions(text):
    """(line number, name, arguments) of each instruction; continued lines are one."""
    found, held, start = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*#", line):
            if not found and not held and re.match(r"#\s*(escape|check|syntax)\s*=", line):
                fail(f"line {number}: parser directives are not known here")
            continue
        if not line.strip():
            if held:
                fail(f"line {number}: an empty line inside of an instruction")
            continue
        start = start if held else number
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1]
            continue
        name, _, rest = (held + line).strip().partition(" ")
        if "<<" in rest:
            fail(f"line {start}: here-documents are not known here")
        found.append((start, name.upper(), rest.strip()))
        held = ""
    if held:
        fail("the last instruction does not end")
    return found


def options(rest, known):
    """Leading --name=value pairs, and what follows them."""
    given = []
    while match := re.match(r"--([a-z-]+)(?:=(\S+))?\s+", rest):
        name, value = match.groups()
        if name not in known:
            fail(f"the option --{name} is not known here")
        given.append((name, value))
        rest = rest[match.end():]
    return given, rest


def words(rest):
    """The exec form, the only one taken where an image says what it runs."""
    try:
        value = json.loads(rest)
    except ValueError:
        fail(f"not the exec form (a JSON list): {rest}")
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        fail(f"not a list of texts: {rest}")
    return value


def plain(value):
    if "$" in value:
        fail(f"variables are expanded in RUN alone: {value}")
    return value


def ignored(lines):
    """.dockerignore as a predicate on paths: the last line that fits a path or a folder above it wins."""
    rules = []
    for line in lines:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        keep = line.startswith("!")
        pattern = line.lstrip("!").strip("/")
        if re.search(r"[\[\\]", pattern):
            fail(f".dockerignore: classes and escapes are not known here: {line}")
        parts = re.split(r"(\*\*/?|\*|\?)", pattern)
        special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        expression = "".join(special.get(part, re.escape(part)) for part in parts)
        rules.append((re.compile(expression + r"(?:/.*)?\Z"), keep))

    def test(path):
        verdict = False
        for expression, keep in rules:
            if expression.match(path):
                verdict = not keep
        return verdict

    return test


# --- doing -----------------------------------------------------------------------------------


def run(*command, **more):
    print("   $", shlex.join(str(word) for word in command), flush=True)
    if subprocess.run([str(word) for word in command], check=False, **more).returncode:
        fail("that failed")


def debian(root, *packages):
    include = ["--include=" + ",".join(packages)] if packages else []
    run("mmdebstrap", "--quiet", "--variant=minbase", *include, "bookworm", root)


def rust(root, tag):
    """rust:X.Y-bookworm: Debian with gcc, and this machine's Rust in the place where the image has it."""
    here = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
    wanted = tag.split("-")[0]
    if not here.startswith(f"rustc {wanted}."):
        fail(f"the Dockerfile wants Rust {wanted}, here is {here.strip()}")
    debian(root, "gcc", "g++", "libc6-dev", "make", "ca-certificates")
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    toolchain = root / "usr/local/rustup/toolchain"
    toolchain.mkdir(parents=True)
    run("mount", "--bind", "-o", "ro", sysroot, toolchain)
    (root / "usr/local/cargo").mkdir()
    (root / "usr/local/cargo/bin").symlink_to("/usr/local/rustup/toolchain/bin")
    # Certificates that this machine trusts beyond Debian's, as those of a proxy.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
    return {"CARGO_HOME": "/usr/local/cargo", "PATH": "/usr/local/cargo/bin:" + PATH}


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASES = [
    (r"rust:([0-9]+\.[0-9]+-bookworm)", rust),
    (r"debian:bookworm-slim", debian),
]


class Stage:
    def __init__(self, image, root):
        self.root, self.folder, self.user = root, "/", None
        self.env = {"PATH": PATH}
        self.entrypoint, self.command, self.health, self.ports, self.stop = [], [], [], [], "SIGTERM"
        for pattern, make in BASES:
            if match := re.fullmatch(pattern, image):
                self.env.update(make(root, *match.groups()) or {})
                break
        else:
            fail(f"nothing stands in for the image {image}")

    def inside(self, path):
        """A path of the image as one of this machine."""
        return self.root / os.path.normpath(os.path.join(self.folder, path)).lstrip("/")

    def run(self, rest, cache):
        given, script = options(rest, {"mount"})
        mounts = []
        for _, value in given:
            mount = dict(part.partition("=")[::2] for part in value.split(","))
            if mount.pop("type", None) != "cache" or set(mount) - {"target", "sharing", "id"}:
                fail(f"only plain cache mounts are known here: {value}")
            mounts.append(mount["target"])
        if script.startswith("["):
            fail("the exec form of RUN is not known here")
        if self.user:
            fail("RUN after USER is not known here")
        places = [("/dev", self.root / "dev"), ("/etc/resolv.conf", self.root / "etc/resolv.conf")]
        for target in mounts:
            held = cache / target.strip("/").replace("/", "-")
            held.mkdir(parents=True, exist_ok=True)
            self.inside(target).mkdir(parents=True, exist_ok=True)
            places.append((held, self.inside(target)))
        (self.root / "etc/resolv.conf").touch()
        run("mount", "-t", "proc", "proc", self.root / "proc")
        for source, target in places:
            run("mount", "--rbind", source, target)
        passed = {name: os.environ[name] for name in ("CARGO_BUILD_JOBS", "http_proxy", "https_proxy", "no_proxy")
                  if name in os.environ}
        run("chroot", self.root, "/bin/sh", "-c", 'cd "$0" && eval "$1"', self.folder, script,
            env={**passed, **self.env, "HOME": "/root"})
        for _, target in reversed(places):
            run("umount", "--recursive", target)
        run("umount", self.root / "proc")

    def copy(self, rest, stages, context, binary):
        given, rest = options(rest, {"from", "chmod"})
        given = dict(given)
        *sources, target = [plain(word) for word in shlex.split(rest)]
        into = self.inside(target)
        folder = target.endswith("/") or target in (".", "./")
        if len(sources) > 1 and not folder:
            fail(f"COPY of several into something that is no folder: {target}")
        for source in sources:
            if "from" not in given:
                came = context / source
            elif binary:
                came = binary if source == "/headwall" else context.parent / Path(source).name
                came.exists() or came.touch()
            elif given["from"] in stages:
                came = stages[given["from"]].inside(source)
            else:
                fail(f"no stage named {given['from']}")
            if not came.exists():
                fail(f"COPY: {source} is not there (does .dockerignore let it through?)")
            if came.is_dir():
                shutil.copytree(came, into, symlinks=True, dirs_exist_ok=True)
                continue
            place = into / Path(source).name if folder or into.is_dir() else into
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(came, place)
            if "chmod" in given:
                place.chmod(int(given["chmod"], 8))
            print(f"   {place.relative_to(self.root)}: {place.stat().st_size} bytes")


def filtered(source, target):
    """What .dockerignore lets through."""
    ignore = source / ".dockerignore"
    test = ignored(ignore.read_text().splitlines() if ignore.exists() else [])
    count = 0
    for folder, _, files in os.walk(source):
        for name in files:
            path = Path(folder) / name
            if not test(str(path.relative_to(source))):
                place = target / path.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, place)
                count += 1
    print(f"the context: {count} files, {', '.join(sorted(entry.name for entry in target.iterdir()))}")


def main(source, work, binary=None):
    source, work = Path(source).resolve(), Path(work).resolve()
    steps = instructions((source / "Dockerfile").read_text())
    context = work / "context"
    context.mkdir()
    filtered(source, context)
    last = max(index for index, step in enumerate(steps) if step[1] == "FROM")
    stages, stage = {}, None
    for index, (number, name, rest) in enumerate(steps):
        if binary and index < last:
            continue
        print(f"line {number}: {name} {rest}", flush=True)
        if name == "FROM":
            match = re.fullmatch(r"(\S+)(?:\s+AS\s+(\S+))?", plain(rest), re.IGNORECASE)
            if not match or rest.startswith("--"):
                fail(f"FROM {rest} is not known here")
            image, called = match.groups()
            stage = Stage(image, work / ("root" if index == last else f"stage-{len(stages)}"))
            stages[called or str(len(stages))] = stage
        elif stage is None:
            fail(f"{name} before FROM is not known here")
        elif name == "RUN":
            stage.run(rest, work / "cache")
        elif name == "COPY":
            stage.copy(rest, stages, context, binary and Path(binary))
        elif name == "WORKDIR":
            stage.folder = os.path.join(stage.folder, plain(rest))
            stage.inside(".").mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            for pair in shlex.split(plain(rest)):
                key, equals, value = pair.partition("=")
                if not equals:
                    fail(f"ENV without an equals sign: {rest}")
                stage.env[key] = value
        elif name == "USER":
            if not re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", rest):
                fail(f"USER is not a pair of numbers other than 0: {rest}")
            stage.user = rest
        elif name == "EXPOSE":
            stage.ports += plain(rest).split()
        elif name == "STOPSIGNAL":
            stage.stop = plain(rest)
        elif name == "HEALTHCHECK":
            _, rest = options(rest, {"interval", "timeout", "start-period", "retries"})
            if not rest.startswith("CMD "):
                fail(f"HEALTHCHECK {rest} is not known here")
            stage.health = words(rest[4:].strip())
        elif name == "ENTRYPOINT":
            stage.entrypoint, stage.command = words(rest), []
        elif name == "CMD":
            stage.command = words(rest)
        else:
            fail(f"line {number}: the instruction {name} is not known here")
    if not stage.user:
        fail("the image runs as root")
    with open(work / "image.sh", "w") as out:
        for name, value in [
            ("user", [stage.user]), ("environment", [f"{key}={value}" for key, value in stage.env.items()]),
            ("entrypoint", stage.entrypoint), ("command", stage.command), ("health", stage.health),
            ("ports", stage.ports), ("stop", [stage.stop]), ("folder", [stage.folder]),
        ]:
            print(f"{name}=({shlex.join(value)})", file=out)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    given = arguments[3] if len(arguments) == 4 and arguments[2] == "--binary" else None
    if len(arguments) != 2 and not given:
        fail("usage: dockerfile.py CONTEXT WORK [--binary FILE]")
    main(arguments[0], arguments[1], given)
