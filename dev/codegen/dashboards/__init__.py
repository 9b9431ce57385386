"""The Grafana dashboards in code: `python -m dev.codegen.dashboards` writes what the chart ships, as classic JSON that old and new Grafana read.

Each module has the panels of one dashboard; `panels` has what they are made of, `build` turns them into what grafana-foundation-sdk makes of them.
"""
