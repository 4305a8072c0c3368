"""A foreign process that ends with the test that started it."""

import os
import signal
import subprocess

from support.wait import until

# The kernel ends the process when the tests are gone, however they went. A program of util-linux
# does it because code between fork and exec does not go together with gRPC's threads.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


def plain_environment(extra=None):
    """An environment without any setting of the machine that runs the tests."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | (extra or {})


class Child:
    """A process whose output goes to `log`."""

    def __init__(self, argv, log, env=None, cwd=None):
        self.argv = [str(word) for word in argv]
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                [*_DIE_WITH_PARENT, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=plain_environment(env),
                cwd=cwd,
            )

    def output(self):
        """Everything it wrote so far."""
        return self.log.read_text(errors="replace")

    def running(self):
        return self.process.poll() is None

    def until(self, check, what, timeout=20.0):
        """Like `wait.until`, but fails at once when the process ends."""

        def check_alive():
            found = check()
            if found:
                return found
            assert self.running(), (
                f"{self.argv[0]} ended with {self.process.returncode} while waiting for {what}:\n"
                f"{self.output()[-4000:]}"
            )
            return None

        return until(check_alive, what, timeout)

    def until_logged(self, text, timeout=20.0):
        """Waits until it wrote `text`."""
        return self.until(lambda: text in self.output(), f"{text!r} in {self.log}", timeout)

    def send(self, number):
        """Sends a signal."""
        self.process.send_signal(number)

    def wait(self, timeout=30.0):
        """Its exit code, once it ended by itself."""
        return self.process.wait(timeout)

    def stop(self, number=signal.SIGTERM, timeout=30.0):
        """Ends it and returns its exit code; a process that does not listen is killed and fails."""
        if self.running():
            self.send(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.argv[0]} did not stop within {timeout:g} s") from None

    def kill(self):
        """Ends it the hard way, if it still runs."""
        if self.running():
            self.process.kill()
        self.process.wait()
