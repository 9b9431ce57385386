from dev.benchmarks.scale.counters import attributed, calls, since, writes

OPERATOR = """\
# HELP rest_client_requests_total Requests to the API server
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="201",method="POST"} 5.0
rest_client_requests_total{code="409",host="10.78.0.1:26443",method="POST"} 1
rest_client_requests_total{code="200",method="GET"} 1e+02
rest_client_requests_total_created{code="200",method="GET"} 1.7e+09
"""
SERVER = """\
apiserver_request_total{code="201",component="apiserver",group="",resource="pods",subresource="binding",verb="POST"} 4
apiserver_request_total{code="201",group="",resource="pods",scope="resource",subresource="",verb="POST"} 5
apiserver_request_total{code="409",group="",resource="pods",scope="resource",subresource="",verb="POST"} 1
apiserver_request_total{code="200",group="",resource="pods",scope="cluster",subresource="",verb="LIST"} 9
"""


def test_operator_calls_are_counted_by_verb() -> None:
    assert calls(OPERATOR) == {"POST": 6, "GET": 100}


def test_server_writes_are_counted_by_resource() -> None:
    assert writes(SERVER) == {"POST pods/binding": 4, "POST pods": 6}


def test_unchanged_counters_are_not_listed() -> None:
    assert since({"GET": 3, "POST": 2}, {"GET": 3, "POST": 7, "PUT": 1}) == {"POST": 5, "PUT": 1}


def test_calls_are_attributed_to_their_only_client() -> None:
    counted = {"GET": 2, "POST": 502, "PUT": 9, "PATCH": 1}
    written = {"POST pods": 500, "POST pods/binding": 500, "PUT trainingjobs/status": 6}
    own = frozenset({"POST pods", "PUT trainingjobs/status"})
    assert attributed(counted, written, own, {"PUT": "PUT leases"}) == {
        "GET": 2,
        "PATCH": 1,
        "POST": 2,
        "POST pods": 500,
        "PUT leases": 3,
        "PUT trainingjobs/status": 6,
    }
