"""Records -> tables, JSON, CSV: what hgpart found, for people and for programs."""

from hgpart.files.columns import UNITS
from hgpart.report.comparison import print_comparison
from hgpart.report.layers import as_rows_json, print_layer_times, print_rows, print_trace
from hgpart.report.models import print_models
from hgpart.report.partition.columns import as_csv, as_json
from hgpart.report.partition.printing import print_report
from hgpart.report.partition.record import Report

__all__ = [
    "UNITS",
    "Report",
    "as_csv",
    "as_json",
    "as_rows_json",
    "print_comparison",
    "print_layer_times",
    "print_models",
    "print_report",
    "print_rows",
    "print_trace",
]
