"""Counts checks and prints them as they happen."""

import sys
import time


class Report:
    def __init__(self, out=sys.stdout):
        self.passed, self.failed, self.out = 0, [], out
        self.started = time.monotonic()

    def _print(self, text):
        print(text, file=self.out, flush=True)

    def theme(self, title):
        self._print("\n[%4.0f s] %s" % (time.monotonic() - self.started, title))

    def check(self, name, passed, why=""):
        """One check of the host's own."""
        self._print("  %s %s%s" % ("PASS" if passed else "FAIL", name, ": " + why if why and not passed else ""))
        self.count(name, passed, why)

    def count(self, name, passed, why=""):
        """One check that is on the screen already (a guest's)."""
        if passed:
            self.passed += 1
        else:
            self.failed.append("%s: %s" % (name, why))

    def guest(self, run, label):
        """Runs a guest and takes over its checks; that it ran to its end is a check too."""
        try:
            run.run()
            problem = "" if run.exit_code == 0 else "exit %d" % run.exit_code
        except Exception as error:  # a guest that fails must not take the other tests with it
            problem = str(error)
        for name, passed, why in run.results:
            self.count("%s: %s" % (label, name), passed, why)
        self.check("%s: ran to its end" % label, not problem, problem)
        return not problem

    def finish(self):
        """The summary; returns the exit code."""
        if self.failed:
            self._print("\nfailed:")
            for line in self.failed:
                self._print("  " + line)
        self._print("%d passed, %d failed" % (self.passed, len(self.failed)))
        return 1 if self.failed else 0
