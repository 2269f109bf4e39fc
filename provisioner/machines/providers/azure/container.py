"""State in Azure: a blob container, reached over TLS with Entra ID alone (no account key, no shared signature), with
one folder per cluster.

Writes are conditional (If-Match, If-None-Match), so that of two writers one is told that it lost. Terraform holds an
endless lease on its state while it is at work; one that a killed run left is shown among the blobs as `….tflock`, and
is broken where that is removed.
https://learn.microsoft.com/rest/api/storageservices/specifying-conditional-headers-for-blob-service-operations
https://developer.hashicorp.com/terraform/language/backend/azurerm
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

from provisioner.common.errors import ProviderError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.azure.client import (
    CONNECT_S,
    MOST_WAIT_S,
    READ_S,
    RETRIES,
    Cloud,
    answered,
    credential_of,
    enum_text,
    require,
)
from provisioner.machines.providers.azure.state import AzurermState
from provisioner.machines.providers.state import Blob, Conflict
from provisioner.machines.providers.state_folder import LIMIT, VERSIONS, StateFolder, age_s, refuse_oversized
from provisioner.machines.providers.trouble import Trouble

T = TypeVar("T")
LOCK = ".tflock"
MOST_BLOBS = 100_000
"""In one cluster's folder; a cluster has some dozens."""
LOST = ("ConditionNotMet", "BlobAlreadyExists", "UnauthorizedBlobOverwrite", "TargetConditionNotMet")
ROLE = "the role `Storage Blob Data Contributor` on the container is missing (`gpuprov docs azure 'state role'`)"
HINTS = {
    "settings": "`gpuprov docs azure` has the variables", "credentials": "sign in (`az login`)", "denied": ROLE,
    "throttled": "again in a minute", "silent": "is this machine's network up, and may it reach the storage account?",
}  # fmt: skip


class Container(StateFolder):
    """One cluster's folder in a container. `test_credential`: that of tests."""

    missing = ("ContainerNotFound",)

    def __init__(self, cloud: Cloud, state: AzurermState, cluster: str, test_credential: Any = None) -> None:
        super().__init__(state, cluster)
        self._cloud, self._state, self._test_credential = cloud, state, test_credential

    @property
    def where(self) -> str:
        return f"{self._url}/{self._state.container}/{self._folder}"

    @property
    def _url(self) -> str:
        return f"https://{self._state.account}.{self._cloud.blob}"

    @cached_property
    def _service(self) -> Any:
        require()
        from azure.storage.blob import BlobServiceClient

        # Its own retries wait 15 s and more each.
        return BlobServiceClient(
            self._url, credential=self._test_credential or credential_of(self._cloud), connection_timeout=CONNECT_S,
            read_timeout=READ_S, retry_total=RETRIES, initial_backoff=min(1, MOST_WAIT_S), increment_base=2,
        )  # fmt: skip

    @property
    def _container(self) -> Any:
        return self._service.get_container_client(self._state.container)

    def _blob(self, name: str) -> Any:
        return self._container.get_blob_client(f"{self._folder}/{name}")

    def terraform(self, site: str) -> tuple[str, Mapping[str, Any]]:
        return "azurerm", {
            "storage_account_name": self._state.account, "container_name": self._state.container,
            "key": f"{self._folder}/sites/{site}/terraform.tfstate", "use_azuread_auth": True,
            "environment": self._cloud.terraform,
        }  # fmt: skip

    @property
    def _store(self) -> str:
        return f"container {self._state.container} in {self._state.account}"

    def _look(self) -> Any:
        return answered(self._container.get_container_properties)

    def _make(self) -> None:
        self._ask(lambda: self._container.create_container(metadata={"gpuprov": "state"}))

    def _just_made(self) -> list[Finding]:
        return self._account_findings()

    def _looked_at(self, info: Any) -> list[Finding]:
        wrong = self._account_findings()
        if info.public_access:
            message = f"everybody may read {self._state.container}: a state has secrets"
            wrong.append(Finding("blocks", "state", message, "take public access from the container"))
        return wrong or [Finding("ok", "state", self.where)]

    def _account_findings(self) -> list[Finding]:
        """Whether what is overwritten or deleted can be had back."""
        subject = f"{self._state.account} keeps deleted blobs"
        try:
            policy = answered(self._service.get_service_properties)["delete_retention_policy"]
        except Trouble as error:
            return [Finding("unknown", "state", f"whether {subject}: {error}", "look at its data protection")]
        if not policy.enabled:
            hint = "turn on soft delete and versioning (data protection) of the storage account"
            return [Finding("warning", "state", f"{subject} for no day: a lost state cannot be restored", hint)]
        return []

    def read(self, name: str, known: str | None = None) -> Blob | None:
        from azure.core import MatchConditions

        match = {"etag": known, "match_condition": MatchConditions.IfModified} if known else {}
        dates: list[str] = []

        def record_date(response: Any) -> None:
            dates.append(str(response.http_response.headers.get("Date", "")))

        def fetched() -> tuple[bytes, Any]:
            stream = self._blob(name).download_blob(0, LIMIT + 1, raw_response_hook=record_date, **match)
            return stream.readall(), stream.properties

        def emptied() -> tuple[bytes, Any]:
            """Of an empty blob no range can be asked for."""
            properties = self._blob(name).get_blob_properties(raw_response_hook=record_date)
            return (b"", properties) if not properties.size else fetched()

        try:
            content, properties = answered(fetched)
        except Trouble as error:
            if known and error.code in ("304", "ConditionNotMet"):
                return Blob(b"", known)
            if error.code == "BlobNotFound" or (error.code == "ContainerNotFound" and self._state.create):
                return None
            if error.code != "InvalidRange":
                raise self._store_error(error) from None
            content, properties = self._ask(emptied)
        date = dates[-1] if dates else None
        return Blob(refuse_oversized(content, VERSIONS), str(properties.etag), age_s(date, properties.last_modified))

    def write(self, name: str, content: bytes, previous_tag: str | None) -> str:
        from azure.core import MatchConditions

        match = {"etag": previous_tag, "match_condition": MatchConditions.IfNotModified} if previous_tag else {}
        try:
            return str(
                answered(lambda: self._blob(name).upload_blob(content, overwrite=bool(previous_tag), **match))["etag"]
            )
        except Trouble as error:
            if error.code in LOST or (error.code == "BlobNotFound" and previous_tag):
                raise Conflict(f"{self.where}/{name}") from None
            raise self._store_error(error) from None

    def remove(self, name: str, previous_tag: str | None = None) -> None:
        """Of a lock: break Terraform's lease."""
        from azure.core import MatchConditions

        match = {"etag": previous_tag, "match_condition": MatchConditions.IfNotModified} if previous_tag else {}
        try:
            if name.endswith(LOCK):
                from azure.storage.blob import BlobLeaseClient

                answered(lambda: BlobLeaseClient(self._blob(name.removesuffix(LOCK))).break_lease(lease_break_period=0))
            else:
                answered(lambda: self._blob(name).delete_blob(delete_snapshots="include", **match))
        except Trouble as error:
            if previous_tag and error.code in LOST:
                raise Conflict(f"{self.where}/{name}") from None
            if error.code not in ("BlobNotFound", "LeaseNotPresentWithLeaseOperation"):
                raise self._store_error(error) from None

    def names(self) -> list[str]:
        folder = f"{self._folder}/"
        try:
            blobs = answered(lambda: list(islice(self._container.list_blobs(name_starts_with=folder), MOST_BLOBS + 1)))
        except Trouble as error:
            if error.code == "ContainerNotFound" and self._state.create:
                return []
            raise self._store_error(error) from None
        if len(blobs) > MOST_BLOBS:
            raise ProviderError(f"{self.where} has more than {MOST_BLOBS} blobs", where="state", hint="look at them")
        names = [str(blob.name).removeprefix(folder) for blob in blobs]
        leased = [
            str(blob.name).removeprefix(folder) + LOCK for blob in blobs if enum_text(blob.lease.state) == "leased"
        ]
        return names + leased

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return answered(call)
        except Trouble as error:
            raise self._store_error(error) from None

    def _store_error(self, error: Trouble) -> ProviderError:
        hint = HINTS.get(error.kind, "")
        if error.code == "ContainerNotFound":
            hint = "state.create: true has gpuprov make it"
        return ProviderError(f"the cluster's state: {error}", where="state", hint=hint)
