"""REST paths that wait for a device, and the refusal of requests for one. `protocols/grpc_methods.py` has the methods.

Aliases, as on Vertex AI, are not among them.
"""

from typing import Final

# Ends of REST paths.
INFERENCE_ENDS: Final = (":predict", ":classify", ":regress", "/infer")
OVERLOADED: Final = "The server is overloaded and would answer this request after its deadline"
