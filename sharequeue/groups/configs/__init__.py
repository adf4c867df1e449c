"""The configurations of groups and of the service.

`keys` defines them, `names` knows those that are gone or mistyped, `texts` turns a text into a value and back,
`values` says what a group is configured to do, `altering` changes it, and `published` writes down what the service
was started with.
"""

from sharequeue.groups.configs.altering import alter_and_tell, alter_group_configs, validate_group_config
from sharequeue.groups.configs.values import GroupConfigs, ServiceConfigs, stored_configs

__all__ = [
    "GroupConfigs",
    "ServiceConfigs",
    "alter_and_tell",
    "alter_group_configs",
    "stored_configs",
    "validate_group_config",
]
