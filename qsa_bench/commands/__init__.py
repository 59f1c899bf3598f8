"""Commands: `run(request, progress)` of each module turns a request into a result.

None prints, none imports another.
"""
