# SPDX-License-Identifier: Apache-2.0
"""kvtier.adapters.vllm_plugin - tells vLLM of KvtierConnector, so that its name alone is enough in a configuration.

vLLM calls register() in each of its processes, as the package names it in the group vllm.general_plugins. A connector
that is given by kv_connector_module_path alone is not known to MultiConnector where it puts statistics together.
"""
from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """It may be called more than once in a process."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    try:
        KVConnectorFactory.register_connector("KvtierConnector", "kvtier.vllm", "KvtierConnector")
    except ValueError:      # it is registered
        pass
