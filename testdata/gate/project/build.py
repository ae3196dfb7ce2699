"""Runs the tools that make what is shipped."""

import runpy

runpy.run_path("tools/pages.py")
