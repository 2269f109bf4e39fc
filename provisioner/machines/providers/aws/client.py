"""Questions to AWS: every one has a deadline, and an answer that did not come is told apart from a no.

Codes: EC2 API error codes and botocore's own exceptions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from provisioner.machines.providers.trouble import Kind, Trouble

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.client import BaseClient

T = TypeVar("T")

CREDENTIALS = {
    "AuthFailure", "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "SignatureDoesNotMatch",
    "UnrecognizedClientException", "InvalidToken", "RequestExpired", "MissingAuthenticationToken", "OptInRequired",
}  # fmt: skip
DENIED = {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "UnauthorizedException"}
THROTTLED = {"RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException", "SlowDown"}
CONNECT_S, READ_S, ATTEMPTS = 5, 15, 4
"""One call: seconds to connect and to answer, and how often it is tried (standard mode: exponential, with jitter)."""


class Region:
    """One region, asked with the user's own credential chain (environment, profile, SSO, instance role)."""

    def __init__(self, name: str, endpoint: str | None = None) -> None:
        self.name = name
        self._endpoint = endpoint
        self._clients: dict[str, BaseClient] = {}
        self._session: Session | None = None
        self._making = threading.Lock()

    def in_region(self, name: str) -> Region:
        """Another region with the same credentials, and what was read of the services' descriptions. Raises Trouble."""
        other = Region(name, self._endpoint)
        other._session, other._making = self._open_session(), self._making
        return other

    def partition(self) -> str:
        """The partition that the region is in: aws, aws-cn, aws-us-gov … Raises Trouble for a region of none."""
        session = self._open_session()
        return answered(lambda: str(session.get_partition_for_region(self.name)))

    def _open_session(self) -> Session:
        import boto3

        # A session of its own: boto3's shared one keeps the credentials that it first found.
        self._session = self._session or answered(boto3.session.Session)
        return self._session

    def client(self, service: str) -> BaseClient:
        """A client of a service, made once. Raises Trouble where the profile or the region does not exist."""
        if service not in self._clients:
            from botocore.config import Config

            retries = {"mode": "standard", "max_attempts": ATTEMPTS}
            config = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries=retries)
            with self._making:  # a session may not make two clients at once
                session = self._open_session()
                self._clients[service] = answered(
                    lambda: session.client(service, region_name=self.name, endpoint_url=self._endpoint, config=config)
                )
        return self._clients[service]

    def ask(self, service: str, call: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one call. Raises Trouble."""
        client = self.client(service)
        return answered(lambda: getattr(client, call)(**arguments))

    def all(self, service: str, call: str, key: str, **arguments: Any) -> list[Any]:
        """The items of every page of a call. Raises Trouble."""
        client = self.client(service)
        if not client.can_paginate(call):
            return list(self.ask(service, call, **arguments)[key])
        return answered(
            lambda: [item for page in client.get_paginator(call).paginate(**arguments) for item in page.get(key, [])]
        )


def answered(call: Callable[[], T]) -> T:
    """The call's value; every exception of botocore as Trouble."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    try:
        return call()
    except EOFError:  # the profile has mfa_serial, and botocore asks a person for the code
        raise Trouble("credentials", "the profile asks for an MFA code, and there is no terminal to ask in") from None
    except exceptions.ConfigParseError as error:  # names its file
        raise Trouble("settings", str(error)) from None
    except (exceptions.ConfigNotFound, exceptions.InvalidConfigError, exceptions.InvalidRegionError,
            exceptions.InvalidRetryConfigurationError, exceptions.InvalidDefaultsMode,
            exceptions.InvalidProxiesConfigError, exceptions.InvalidSTSRegionalEndpointsConfigError,
            exceptions.InvalidIMDSEndpointError, exceptions.InvalidIMDSEndpointModeError) as error:  # fmt: skip
        raise Trouble("settings", f"{str(error).removesuffix('.')}, in {_files()}") from None
    except ValueError as error:
        if not str(error).startswith("Invalid endpoint"):  # botocore.client; anything else is a defect
            raise
        raise Trouble("settings", f"{error}, in {_files('AWS_ENDPOINT_URL')}") from None
    except exceptions.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        raise Trouble(kind_of(code), str(error.response.get("Error", {}).get("Message") or error), code) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError,
            exceptions.TokenRetrievalError, exceptions.SSOError, exceptions.ProfileNotFound) as error:  # fmt: skip
        raise Trouble("credentials", str(error)) from None
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise Trouble("silent", str(error)) from None
    except ResponseParserError:  # a proxy's page, or half an answer
        raise Trouble("silent", "what answered does not speak as AWS does; look at the proxy") from None
    except exceptions.BotoCoreError as error:
        raise Trouble("refused", str(error)) from None


def _files(*variables: str) -> str:
    """Where AWS's settings of this machine come from, the likeliest first: variables that are set, then files."""
    of_region = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE")
    settings = [f"{name}={os.environ[name]}" for name in (*variables, *of_region) if os.environ.get(name)]
    return " or ".join([*settings, os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config"])


def kind_of(code: str) -> Kind:
    """What an error code of the API means for whoever asked."""
    if code in CREDENTIALS:
        return "credentials"
    if code in DENIED:
        return "denied"
    if code in THROTTLED:
        return "throttled"
    return "absent" if code.endswith((".NotFound", ".Unknown", "NotFound", "NotFoundException")) else "refused"
