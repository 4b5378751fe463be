"""Types of the nodes of graphs (``graph_nodes.pyx``)."""

from typing import Any

class GraphNode:
    def update(self, graph: Any, /, *args: Any) -> None: ...
