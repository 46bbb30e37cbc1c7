"""Counts checks and prints them as they happen; and what all tests with guests do around them."""

import argparse
import sys
import time

import guest


class Report:
    def __init__(self, out=sys.stdout):
        self.passed, self.failed, self.out = 0, [], out
        self.started = time.monotonic()

    def _print(self, text):
        print(text, file=self.out, flush=True)

    def theme(self, title):
        self._print("\n[%4.0f s] %s" % (time.monotonic() - self.started, title))

    def say(self, text):
        """A figure of a test, which is no check."""
        self._print("    | " + text)

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

    def booted(self, run, label, *daemons, expected=()):
        """The same with the end of the daemons' logs if something is wrong, and theirs after it."""
        if not self.guest(run, label):
            self._print("".join(daemon.log_tail() for daemon in daemons))
        for daemon in daemons:
            self.ended(daemon, expected=expected)

    def ended(self, daemon, whose="", expected=()):
        """Stops a daemon, which ends as it should and had nothing to complain of but what is expected."""
        code = daemon.stop()
        self.check(whose + "the daemon ends cleanly", code == 0, "exit code %s" % code)
        self.check(whose + "the daemon's log has no errors", not daemon.complaints(expected),
                   daemon.complaints(expected))

    def scratch(self, name, test, *facts):
        """Runs a test with a folder that is gone afterwards. One that cannot go on has failed, and takes no other with it."""
        with guest.scratch() as folder:
            try:
                test(self, folder, *facts)
            except guest.GuestError as error:
                self.check(name, False, str(error))

    def finish(self):
        """The summary; returns the exit code."""
        if self.failed:
            self._print("\nfailed:")
            for line in self.failed:
                self._print("  " + line)
        self._print("%d passed, %d failed" % (self.passed, len(self.failed)))
        return 1 if self.failed else 0


def by_kernels(doc, run, kernels=guest.KERNELS, **more):
    """The main function of a test whose `run` takes kernels, and more options by their names."""
    return _main(doc, run, {"kernels": {"nargs": "+", "default": ("6.12",), "choices": kernels}, **more})


def by_kernel(doc, run):
    """That of one whose `run` takes a kernel."""
    return _main(doc, run, {"kernel": {"default": "6.12", "choices": guest.KERNELS}})


def _main(doc, run, options):
    guest.end_politely()
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, about in options.items():
        parser.add_argument("--" + name, **about)
    report = Report()
    run(report, **vars(parser.parse_args()))
    return report.finish()
