"""Where everything is, and how it is reached: the settings that all parts of the project share."""

from sharequeue.settings.database import DatabaseOptions, RoleNames, normalise_database_url
from sharequeue.settings.output import OutputInvalid
from sharequeue.settings.service_address import ServiceAddress, SettingMissing
from sharequeue.settings.service_limits import ServiceLimits
from sharequeue.settings.settings import Settings
from sharequeue.settings.sources import KAFKA_PREFIX

__all__ = [
    "KAFKA_PREFIX",
    "DatabaseOptions",
    "OutputInvalid",
    "RoleNames",
    "ServiceAddress",
    "ServiceLimits",
    "SettingMissing",
    "Settings",
    "normalise_database_url",
]
