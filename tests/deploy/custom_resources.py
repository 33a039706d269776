"""Schemas of the custom resources in deploy/: the fields in use, of the types in the projects' own CRDs.

They are strict: a field or a value that is not listed is an error. Add it here from the CRD before you use it.
"""

from collections.abc import Mapping
from typing import Any

import jsonschema

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
_NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_PERCENT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}
_DURATION: Schema = {"type": "string", "pattern": "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$", "minLength": 2}
_PATH: Schema = {"type": "string", "pattern": "^/", "maxLength": 255}


def _fields(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """Return the schema of an object with these fields and no other."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **optional},
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


def _resource(api_version: str, spec: Schema) -> Schema:
    metadata = _fields({"name": _NAME}, labels=_TEXTS, annotations=_TEXTS)
    head = {"apiVersion": {"const": api_version}, "kind": _TEXT}
    return _fields({**head, "metadata": metadata, "spec": spec})


# Prometheus Operator: example/prometheus-operator-crd. Managed Service for Prometheus: charts/operator/crds.
_SELECTOR = _fields({"matchLabels": _TEXTS})
_SCRAPE = {"port": _TEXT, "interval": _DURATION, "path": _PATH}
_SCHEME = {"enum": ["http", "https"]}
_TLS = _fields({"insecureSkipVerify": {"type": "boolean"}})
_KEY = _fields({"name": _NAME, "key": _TEXT})


def _authorization(credentials: Schema) -> Schema:
    return _fields({"credentials": credentials}, type={"const": "Bearer"})


_RULE = {
    "oneOf": [
        _fields({"record": {"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"}, "expr": _TEXT}, labels=_TEXTS),
        _fields({"alert": _TEXT, "expr": _TEXT}, labels=_TEXTS, annotations=_TEXTS, **{"for": _DURATION}),
    ]
}
_RULES = _fields({"groups": _list(_fields({"name": _TEXT, "rules": _list(_RULE)}, interval=_DURATION))})

# Gateway API: config/crd/standard.
_LISTENER = _fields({"name": _NAME, "port": _PORT, "protocol": {"enum": ["HTTP", "HTTPS", "TLS"]}}, hostname=_TEXT)
_BACKEND = _fields({"name": _NAME, "port": _PORT, "weight": {"type": "integer", "minimum": 0, "maximum": 1_000_000}})
# A route's reference to a pool of the Gateway API Inference Extension.
_POOL_GROUP = "inference.networking.k8s.io"
_POOL_BACKEND = _fields({"group": {"const": _POOL_GROUP}, "kind": {"const": "InferencePool"}, "name": _NAME})
# llm-d Router: values of its chart, config/charts/routerlib/values.yaml, and the configuration of its endpoint picker.
ROUTER_VALUES = _fields(
    {
        "modelServers": _fields(
            {
                "matchLabels": _TEXTS,
                "protocol": {"enum": ["http", "grpc"]},
                "targetPorts": {**_list(_fields({"number": _PORT})), "maxItems": 8},
            }
        ),
        "epp": _fields({"pluginsConfigFile": _TEXT, "pluginsCustomConfig": _TEXTS}),
    },
    inferencePool=_fields({"create": {"type": "boolean"}, "failureMode": {"enum": ["FailOpen", "FailClose"]}}),
)
_PLUGIN = _fields({"type": _TEXT}, name=_TEXT, parameters={"type": "object"})
_USE = _fields({"pluginRef": _TEXT})
_SCORED = _fields({"pluginRef": _TEXT}, weight={"type": "number", "exclusiveMinimum": 0})
PICKER_CONFIG = _fields(
    {
        "apiVersion": {"const": "llm-d.ai/v1alpha1"},
        "kind": {"const": "EndpointPickerConfig"},
        "plugins": _list(_PLUGIN),
        "schedulingProfiles": _list(_fields({"name": _NAME, "plugins": _list(_SCORED)})),
    },
    requestHandler=_fields({"parsers": _list(_USE)}),
    dataLayer=_fields({"sources": _list(_fields({"pluginRef": _TEXT, "extractors": _list(_USE)}))}),
)
_ROUTE = _fields(
    {
        "parentRefs": _list(_fields({"name": _NAME})),
        "hostnames": _list({"type": "string", "pattern": r"^(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*$"}),
        "rules": _list(_fields({"backendRefs": _list({"oneOf": [_BACKEND, _POOL_BACKEND]})})),
    }
)

# KServe: config/crd/full, and its webhook: a predictor has either `storageUri` or `storageUris`. Tests check the
# containers, volumes and tolerations as those of a Pod.
_PROTOCOL: Schema = {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}
_URI: Schema = {"type": "string", "pattern": "^(s3|gs|pvc|hf|oci|https)://[^/]"}
_OBJECTS = _list({"type": "object"})
_FORMAT = _fields({"name": _TEXT}, version=_TEXT)
_RUNTIME = _fields(
    {
        "supportedModelFormats": _list(_fields({"name": _TEXT, "version": _TEXT, "autoSelect": {"type": "boolean"}})),
        "protocolVersions": _list(_PROTOCOL),
        "containers": _OBJECTS,
    },
    annotations=_TEXTS,
    volumes=_OBJECTS,
)
_MODEL = _fields(
    {"modelFormat": _FORMAT},
    name={"const": "kserve-container"},
    runtimeVersion=_TEXT,
    protocolVersion=_PROTOCOL,
    storageUri=_URI,
    args=_list(_TEXT),
    ports=_list(_fields({"name": {"enum": ["h2c", "http1"]}, "containerPort": _PORT, "protocol": {"const": "TCP"}})),
    resources=_fields({"requests": _TEXTS, "limits": _TEXTS}),
    volumeMounts=_OBJECTS,
)
_PREDICTOR = _fields(
    {"model": _MODEL},
    name=_NAME,
    nodeSelector=_TEXTS,
    tolerations=_OBJECTS,
    volumes=_OBJECTS,
    canaryTrafficPercent=_PERCENT,
    storageUris=_list(_fields({"uri": _URI, "mountPath": _PATH})),
) | {
    "oneOf": [
        {"required": ["storageUris"], "properties": {"model": {"not": {"required": ["storageUri"]}}}},
        {"not": {"required": ["storageUris"]}, "properties": {"model": {"required": ["storageUri"]}}},
    ]
}
_CANARY_PREDICTOR = {"required": ["name"], "properties": {"model": {"required": ["name"]}}}
_CANARY = _fields({"trafficPercent": _PERCENT, "predictor": {"allOf": [_PREDICTOR, _CANARY_PREDICTOR]}})

# KEDA: config/crd/bases, and the fields of its scaler "prometheus". Its metadata are texts. The behavior is that of a
# HorizontalPodAutoscaler, whose schema is Kubernetes' own.
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}
_PROMETHEUS = _fields(
    {"serverAddress": {"type": "string", "pattern": "^https?://"}, "query": _TEXT, "threshold": _NUMBER},
    ignoreNullValues={"enum": ["true", "false"]},
)
_SCALED_OBJECT = _fields(
    {
        "scaleTargetRef": _fields({"name": _NAME}),
        "triggers": _list(
            _fields(
                {"type": {"const": "prometheus"}, "metadata": _PROMETHEUS},
                metricType={"enum": ["AverageValue", "Value"]},
            )
        ),
    },
    minReplicaCount=_COUNT,
    maxReplicaCount=_COUNT,
    pollingInterval=_COUNT,
    advanced=_fields({"horizontalPodAutoscalerConfig": _fields({"behavior": {"type": "object"}})}),
)

SCHEMAS: Mapping[str, Schema] = {
    "ScaledObject": _resource("keda.sh/v1alpha1", _SCALED_OBJECT),
    "ServiceMonitor": _resource(
        "monitoring.coreos.com/v1",
        _fields(
            {
                "selector": _SELECTOR,
                "endpoints": _list(
                    _fields(_SCRAPE, scheme=_SCHEME, tlsConfig=_TLS, authorization=_authorization(_KEY))
                ),
            },
            jobLabel=_TEXT,
        ),
    ),
    "PrometheusRule": _resource("monitoring.coreos.com/v1", _RULES),
    "PodMonitoring": _resource(
        "monitoring.googleapis.com/v1",
        _fields(
            {
                "selector": _SELECTOR,
                "endpoints": _list(
                    _fields(_SCRAPE, scheme=_SCHEME, tls=_TLS, authorization=_authorization(_fields({"secret": _KEY})))
                ),
            }
        ),
    ),
    "Rules": _resource("monitoring.googleapis.com/v1", _RULES),
    "Gateway": _resource(
        "gateway.networking.k8s.io/v1", _fields({"gatewayClassName": _TEXT, "listeners": _list(_LISTENER)})
    ),
    "GRPCRoute": _resource("gateway.networking.k8s.io/v1", _ROUTE),
    "HTTPRoute": _resource("gateway.networking.k8s.io/v1", _ROUTE),
    "ClusterServingRuntime": _resource("serving.kserve.io/v1alpha1", _RUNTIME),
    "InferenceService": _resource(
        "serving.kserve.io/v1beta1", _fields({"predictor": _PREDICTOR}, canary=_list(_CANARY))
    ),
}


def validate_custom(manifest: Mapping[str, Any]) -> None:
    """Check a custom resource.

    Raises:
        jsonschema.ValidationError: a field is missing, unknown or has a wrong value.
    """
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]], cls=jsonschema.Draft202012Validator)
