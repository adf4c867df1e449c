"""The settings that all parts of the project share: addresses, credentials and folders."""

from sharequeue.words.settings.database import DatabaseOptions, RoleNames, normalise_database_url
from sharequeue.words.settings.output import OutputInvalid
from sharequeue.words.settings.servers import ServersInvalid
from sharequeue.words.settings.service_address import ServiceAddress, SettingMissing
from sharequeue.words.settings.service_limits import ServiceLimits
from sharequeue.words.settings.settings import Settings
from sharequeue.words.settings.sources import KAFKA_PREFIX

__all__ = [
    "KAFKA_PREFIX",
    "DatabaseOptions",
    "OutputInvalid",
    "RoleNames",
    "ServersInvalid",
    "ServiceAddress",
    "ServiceLimits",
    "SettingMissing",
    "Settings",
    "normalise_database_url",
]
