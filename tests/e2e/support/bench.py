"""`porteiro bench` as a load that runs beside a test."""

import json

from support.child import Child
from support.porteiro import binary


class Bench(Child):
    """Sends calls to `porteiro` at a fixed rate; `flags` as on the command line, without dashes."""

    def __init__(self, folder, name, porteiro, **flags):
        self.report = folder / f"{name}.json"
        words = [binary(), "bench", "--target", f"http://{porteiro.target}", "--json", self.report]
        for flag, value in flags.items():
            words += [f"--{flag.replace('_', '-')}", value]
        super().__init__(words, folder / f"{name}.log")

    def result(self, timeout=120.0):
        """The report of its only rate, once it has ended. Latencies are in microseconds."""
        assert self.wait(timeout) == 0, self.output()[-2000:]
        report = json.loads(self.report.read_text())
        (step,) = report["steps"]
        names = [name for name, _ in report["quantiles"]]
        for what in ("latency", "from_send"):
            step[what] = dict(zip(names, step[what]["quantiles"]))
        return step
