"""Runs the tests, and writes what became of them in JUnit's form."""

import sys
import unittest
from xml.sax.saxutils import quoteattr


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.cases = []

    def note(self, test, body=""):
        cls = type(test)
        file = cls.__module__.replace(".", "/") + ".py"
        self.cases.append("<testcase classname=%s name=%s file=%s>%s</testcase>" % (
            quoteattr(cls.__module__ + "." + cls.__name__), quoteattr(test.id().rpartition(".")[2]), quoteattr(file), body))

    def addSuccess(self, test):
        self.note(test)

    def addSkip(self, test, reason):
        self.note(test, "<skipped/>")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "<failure message=%s/>" % quoteattr(str(err[1])))

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, "<error message=%s/>" % quoteattr(str(err[1])))


sys.path.insert(0, ".")
result = Result()
unittest.defaultTestLoader.discover("tests", top_level_dir=".").run(result)
with open(".report.xml", "w") as f:
    f.write("<testsuite name=\"stock\">%s</testsuite>\n" % "\n".join(result.cases))
sys.exit(0 if result.wasSuccessful() else 1)
