"""The settings that all parts of the project share: addresses, credentials and folders."""

from sharequeue.domain.settings.addresses import SettingInvalid, SettingMissing, normalise_database_url
from sharequeue.domain.settings.options import DatabaseOptions, RoleNames, ServiceLimits
from sharequeue.domain.settings.service_address import ServiceAddress
from sharequeue.domain.settings.settings import KAFKA_PREFIX, Settings

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
