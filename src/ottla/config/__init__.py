"""Every setting: name, type, default, unit, one line of why; Kafka's names and defaults, in one place.

`tables` holds the rows, `kinds` what a row means, `broker` the settings of a node, `topics` what a topic may set,
`describe` how all of it is listed.
"""

from ottla.config.broker import BrokerConfig, single_node_defaults
from ottla.config.listeners import Endpoint
from ottla.config.topics import validate_topic_configs
from ottla.properties import read_properties

__all__ = ["BrokerConfig", "Endpoint", "read_properties", "single_node_defaults", "validate_topic_configs"]
