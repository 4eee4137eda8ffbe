"""Who is asking: the tenant of an API key.

A key that no tenant owns, or none at all, is the tenant `default`: OpenAI clients always send some
key. To demand a known key, give `default` keys of its own; then any other is refused (HTTP 401).
"""

from __future__ import annotations

from typing import NamedTuple

from controllers.blocks import salt_of
from controllers.errors import InvalidRequest
from infra.settings import Settings
from infra.settings_sections import TenantSettings
from serve_app.http_errors import INVALID_API_KEY

DEFAULT = "default"


class Tenant(NamedTuple):
    name: str
    settings: TenantSettings

    def salt(self, cache_salt: str | None, adapter: str | None = None) -> int:
        """What keeps blocks apart: the tenant's own salt, the request's and the adapter, whose keys
        and values are others for the same tokens; 0 without any."""
        text = self.settings.salt
        if cache_salt is not None:
            text = f"{len(text or '')}:{text or ''}:{cache_salt}"
        if adapter is not None:
            text = f"{len(adapter)}:{adapter}:lora:{text or ''}"
        return salt_of(text)


class Tenants:
    """Tenants by API key."""

    def __init__(self, settings: Settings) -> None:
        self._default = Tenant(DEFAULT, settings.tenants[DEFAULT])
        self._by_key = {
            key: Tenant(name, tenant)
            for name, tenant in settings.tenants.items()
            for key in tenant.api_keys
        }

    def of(self, authorization: str | None) -> Tenant:
        """Tenant of an Authorization header. Raises InvalidRequest with code invalid_api_key."""
        scheme, _, key = (authorization or "").partition(" ")
        tenant = self._by_key.get(key.strip()) if scheme.lower() == "bearer" else None
        if tenant is not None:
            return tenant
        if self._default.settings.api_keys:
            raise InvalidRequest("", "the API key is missing or unknown", INVALID_API_KEY)
        return self._default
