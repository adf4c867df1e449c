"""The settings that all parts of the project share: addresses, credentials and folders."""

from sharequeue.words.settings.addresses import SettingInvalid, SettingMissing, normalise_database_url
from sharequeue.words.settings.options import DatabaseOptions, RoleNames, ServiceLimits
from sharequeue.words.settings.service_address import ServiceAddress
from sharequeue.words.settings.settings import KAFKA_PREFIX, Settings

__all__ = [
    "KAFKA_PREFIX",
    "DatabaseOptions",
    "RoleNames",
    "ServiceAddress",
    "ServiceLimits",
    "SettingInvalid",
    "SettingMissing",
    "Settings",
    "normalise_database_url",
]
