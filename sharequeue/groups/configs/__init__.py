"""The configurations of groups and of the service.

`keys` defines them, `names` has the hints for old and mistyped names, `texts` converts a text to a value and back,
`values` has the effective configs of a group, `altering` changes them, and `published` stores the configs that the
service was started with.
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
