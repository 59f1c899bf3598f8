"""Columns of schema 1 as they were published, by file and type: none is ever renamed."""

from __future__ import annotations

# What schema 1 wrote. A file of this schema is read for ever: names stay, types stay.
SCHEMA_1 = {
    "strengths": {
        "string": "stage target dial check told missed_told turns",
        "int64": "hits repeats probes",
        "double": "caught missed",
        "bool": "monotone",
    },
    "alarms": {"string": "stage target build kind inputs first", "int64": "trials alarms"},
    "verdicts": {
        "string": "build stage case family check status unit first want got where note",
        "int64": "runs count total",
        "double": "error bound margin",
        "map<string,double>": "numbers",
    },
    "mutants": {
        "string": "id stage proves clause patch expect why_survives target outcome where why",
        "list<string>": "targets expected_killed_by killed_by",
        "int64": "expected_differing_bits differing_bits duration_ns",
        "double": "least_margin margin worst_error",
        "bool": "equivalent control race as_expected reused",
    },
    "kills": {
        "string": "mutant check first_case",
        "int64": "cases failed",
        "double": "margin",
    },
    "builds": {
        "string": "kernel target mode mutant digest code_digest compiler library log",
        "list<string>": "flags",
        "int64": "duration_ns",
        "bool": "cached",
    },
    "timings": {
        "string": "key build stage case name kind entry timer cache stopped_because why verdict",
        "list<string>": "kernels",
        "map<string,string>": "axes",
        "map<string,int64>": "dropped",
        "map<string,double>": "clocks",
        "int64": "instances calls total_ns min_ns max_ns bytes_read bytes_written",
        "double": "mean_ns median_ns median_low_ns median_high_ns deviation_ns",
    },
    "sources": {"string": "path text"},
    "samples": {"string": "key", "list<int64>": "samples_ns"},
    "resources": {
        "string": "kernel name",
        "int64": "architecture registers spill_stores spill_loads stack shared threads warps"
        " most_warps",
        "double": "occupancy",
    },
}
