"""Define the Grafana dashboards in code. `python -m dev.codegen.dashboards` writes what the chart ships, as classic JSON for old
and new Grafana.

Each module has the panels of one dashboard. `panels` has their elements, and `build` converts them with
grafana-foundation-sdk.
"""
